"""`baton context add|list|use|show|remove`: named servers with their credentials."""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from typing import Any

from batonq.cli import contexts
from batonq.cli.actions import add_action
from batonq.cli.connection import (
    CONTEXT_VARIABLE,
    Server,
    Target,
    checked_url,
    read_secret,
)
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.output import note, print_fields, print_json, print_table

NAME_LENGTH_MAX = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    add = add_action(actions, "add", "add a context, or change an existing one")
    add.add_argument("name", metavar="NAME", help="name of the context")
    add.add_argument("--url", help="URL of the server")
    credentials = add.add_mutually_exclusive_group()
    credentials.add_argument("--key", metavar="ID", help="id of an access key")
    credentials.add_argument("--token-file", metavar="FILE", help="file that contains the admin token")
    add.add_argument("--secret-file", metavar="FILE", help="file that contains the secret of the access key")
    add.add_argument("--account", help="account to act for")
    add.add_argument("--ca-file", metavar="FILE", help="CA certificate of the server")
    add.add_argument("--use", action="store_true", help="use this context from now on")
    add.add_argument("--check", action="store_true", help="connect to the server before the context is stored")
    listing = add_action(actions, "list", "list the contexts; the one in use has a *")
    listing.add_argument("--names", action="store_true", help="print only the names, one per line")
    use = add_action(actions, "use", "use a context in all following commands")
    use.add_argument("name", metavar="NAME", nargs="?", help="name of the context")
    use.add_argument("--none", action="store_true", help="use no context")
    show = add_action(actions, "show", "show a context, without its secrets")
    show.add_argument("name", metavar="NAME", nargs="?", help="name of the context (default: the one in use)")
    remove = add_action(actions, "remove", "remove a context")
    remove.add_argument("name", metavar="NAME", help="name of the context")
    for action in (add, listing, use, show, remove):
        action.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    kept = contexts.load()
    return {"add": _add, "list": _list, "use": _use, "show": _show, "remove": _remove}[arguments.action](
        kept, arguments
    )


def _add(kept: contexts.Contexts, arguments: argparse.Namespace) -> int:
    name = arguments.name
    if not name.isprintable() or not 1 <= len(name) <= NAME_LENGTH_MAX or " " in name:
        raise WrongUsage(f"A context has a name of 1 to {NAME_LENGTH_MAX} characters without spaces, not {name!r}.")
    existing = kept.named.get(name)
    if existing is None and not arguments.url:
        raise WrongUsage(f"--url is missing: the URL of the server of context {name}.")
    if bool(arguments.key) != bool(arguments.secret_file):
        raise WrongUsage("--key and --secret-file belong together: the id and the secret of an access key.")
    context = existing or contexts.Context(url=checked_url(arguments.url))
    if arguments.url:
        context = context._replace(url=checked_url(arguments.url))
    if arguments.key:
        secret = read_secret(arguments.secret_file, "--secret-file")
        context = context._replace(key=arguments.key, secret=secret, token="")
    if arguments.token_file:
        context = context._replace(key="", secret="", token=read_secret(arguments.token_file, "--token-file"))
    if arguments.account is not None:
        context = context._replace(account=arguments.account)
    if arguments.ca_file is not None:
        context = context._replace(ca_file=os.path.abspath(arguments.ca_file) if arguments.ca_file else "")
    if arguments.check:
        _check(name, context)
    kept.named[name] = context
    if arguments.use or not kept.current:
        kept.current = name
    kept.save()
    _report(arguments, kept, name, f"Context {name} is stored" + (" and in use." if kept.current == name else "."))
    return 0


def _check(name: str, context: contexts.Context) -> None:
    target = Target(
        url=context.url,
        origin=f"context {name}",
        key=context.key,
        secret=context.secret,
        token=context.token,
        account=context.account,
        ca_file=context.ca_file,
    )
    with closing(Server(target)) as server:
        server.get("/v1/queues", limit=1)


def _list(kept: contexts.Contexts, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json({"current": kept.current, "contexts": [_shown(kept, name) for name in sorted(kept.named)]})
        return 0
    if arguments.names:
        for name in sorted(kept.named):
            print(name)
        return 0
    if not kept.named:
        note("There are no contexts. Add one with `baton context add NAME --url URL`.")
        return 0
    rows = []
    for name in sorted(kept.named):
        context = kept.named[name]
        mark = "*" if name == kept.current else ""
        rows.append((mark, name, context.url, _credentials(context), context.account))
    print_table(("", "NAME", "URL", "CREDENTIALS", "ACCOUNT"), rows)
    named = os.environ.get(CONTEXT_VARIABLE)
    if named:
        note(f"{CONTEXT_VARIABLE} selects the context {named}.")
    return 0


def _use(kept: contexts.Contexts, arguments: argparse.Namespace) -> int:
    if bool(arguments.name) == arguments.none:
        raise WrongUsage("Name a context, or use --none.")
    if arguments.name:
        kept.get(arguments.name)
    kept.current = arguments.name or ""
    kept.save()
    if arguments.json:
        print_json({"current": kept.current})
    else:
        print(f"Context {kept.current} is in use." if kept.current else "No context is in use.")
    return 0


def _show(kept: contexts.Contexts, arguments: argparse.Namespace) -> int:
    name = arguments.name or os.environ.get(CONTEXT_VARIABLE) or kept.current
    if not name:
        raise WrongUsage("No context is in use. Name one, or choose one with `baton context use NAME`.")
    context = kept.get(name)
    if arguments.json:
        print_json(_shown(kept, name))
        return 0
    rows = [
        ("name", name),
        ("url", context.url),
        ("credentials", _credentials(context)),
        ("account", context.account),
        ("ca file", context.ca_file),
        ("in use", "yes" if kept.current == name else "no"),
        ("stored in", kept.path),
    ]
    print_fields([(title, value) for title, value in rows if value])
    return 0


def _remove(kept: contexts.Contexts, arguments: argparse.Namespace) -> int:
    kept.get(arguments.name)
    del kept.named[arguments.name]
    if kept.current == arguments.name:
        kept.current = ""
    kept.save()
    if arguments.json:
        print_json({"current": kept.current})
    else:
        print(f"Context {arguments.name} is removed.")
    return 0


def _credentials(context: contexts.Context) -> str:
    return f"key {context.key}" if context.key else "token" if context.token else "none"


def _shown(kept: contexts.Contexts, name: str) -> dict[str, Any]:
    """A context without its secrets."""
    context = kept.named[name]
    shown = {
        "name": name,
        "url": context.url,
        "current": name == kept.current,
        "credentials": "key" if context.key else "token" if context.token else "none",
    }
    optional = {"accessKeyId": context.key, "account": context.account, "caFile": context.ca_file}
    return {**shown, **{field: value for field, value in optional.items() if value}}


def _report(arguments: argparse.Namespace, kept: contexts.Contexts, name: str, text: str) -> None:
    if arguments.json:
        print_json(_shown(kept, name))
    else:
        print(text)
