"""Headers of pages for browsers: a page may load and run only its own content, and no other site may frame it."""

from __future__ import annotations

import base64
from hashlib import sha256


def page_headers(style: str, script: str = "") -> tuple[tuple[str, str], ...]:
    """Headers for a page with these texts in its one style element and its one script element (empty: no script)."""
    asks = "'self'" if script else "'none'"  # a script polls for updates
    policy = [
        "default-src 'none'",
        f"style-src {_source(style)}",
        f"script-src {_source(script)}",
        f"connect-src {asks}",
        "img-src data:",  # the empty icon
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    return (
        ("Content-Security-Policy", "; ".join(policy)),
        ("X-Frame-Options", "DENY"),
        ("Referrer-Policy", "no-referrer"),
    )


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'" if text else "'none'"
