"""Runs one page's Python blocks, one after another in one namespace: a JSON line in, a JSON line out."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
from typing import Any


def main() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    answers = sys.stdout
    for line in sys.stdin:
        block = json.loads(line)
        output = io.StringIO()
        error = ""
        try:
            with contextlib.redirect_stdout(output):
                # The newlines make a traceback's line numbers those of the page.
                exec(compile("\n" * block["line"] + block["text"], block["page"], "exec"), namespace)
        except BaseException:
            error = traceback.format_exc()
        print(json.dumps({"output": output.getvalue(), "error": error}), file=answers, flush=True)


if __name__ == "__main__":
    main()
