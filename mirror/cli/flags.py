"""Settings from the options of ``twinsite mirror``, ``relay`` and ``link``, laid over those of a file.

Pure, except for reading the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mirror import config_relay
from mirror.config import LinkSettings, Settings, TopicsSettings, load, merged, parse
from mirror.config_problems import checked
from mirror.config_relay import RelaySettings
from mirror.config_values import split_patterns
from mirror.config_yaml import read_yaml
from mirror.errors import UsageError

EVERYTHING = ".*"
NO_PORT = -1


def settings_of(options: Mapping[str, Any], *, once: bool, terminal: bool) -> Settings:
    """Settings of a file with options laid over them.

    Args:
        options: By name as on the command line, with ``_`` for ``-``; None if not given.
        once: A copy that ends by itself opens no port unless an option asks for one: the port in a file is
            that of the mirror that runs for ever.
        terminal: Progress is shown on a terminal. With ``once`` only warnings and errors are then logged, by
            default.

    Raises:
        UsageError: Something is missing or not accepted; names path, value and reason.
    """
    path: Path | None = options.get("config")
    base: dict[str, Any] = {"log": {"level": "warning"}} if once and terminal else {}
    document = merged(base, read_yaml(path)) if path else base
    document = merged(document, overrides(options))
    if not path:
        _check_present(document)
    where = str(path) if path else "command line"
    settings = parse(document, where=where, folder=path.absolute().parent if path else None)
    if once and options.get("api_port") is None:
        closed = settings.api.model_copy(update={"port": NO_PORT})
        settings = settings.model_copy(update={"api": closed})
    return settings


def relay_settings_of(options: Mapping[str, Any]) -> RelaySettings:
    """Settings of a relay from a file, with options laid over them.

    Raises:
        UsageError: Something is missing or not accepted; names path, value and reason.
    """
    path: Path | None = options.get("config")
    plain = {
        ("cluster", "bootstrap_servers"): options.get("cluster"),
        ("listen", "address"): options.get("listen"),
        ("api", "port"): options.get("api_port"),
        ("log", "level"): options.get("log_level"),
    }
    document = read_yaml(path) if path else {}
    for at, value in plain.items():
        if value is not None:
            document = merged(document, _nested(at, value))
    if not path and "cluster" not in document:
        raise UsageError("--cluster: missing", hint="use --cluster HOST:PORT or --config FILE")
    where = str(path) if path else "command line"
    return config_relay.parse(document, where=where, folder=path.absolute().parent if path else None)


def link_settings_of(
    options: Mapping[str, Any],
) -> tuple[LinkSettings, TopicsSettings | None, Settings | None]:
    """Settings of the link; of the topics to be copied, if any are named; and of the file, if there is one.

    Raises:
        UsageError: No relay is named, or something is not accepted.
    """
    path: Path | None = options.get("config")
    settings = load(path) if path else None
    link = settings.link if settings else None
    if options.get("relay") is not None:
        named = checked(LinkSettings, {"relays": options["relay"]}, where="--relay", folder=None)
        link = named if link is None else link.model_copy(update={"relays": named.relays})
    if link is None:
        words = "--relay: missing" if path is None else f"{path}: has no link section, and --relay is missing"
        raise UsageError(words, hint="use --relay HOST:PORT, or --config FILE with link.relays")
    topics = settings.topics.model_dump() if settings else {}
    topics |= _lists(options.get("topics") or ())
    wanted = checked(TopicsSettings, topics, where="--topics", folder=None) if topics else None
    return link, wanted, settings


def overrides(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as a settings document; those that were not given are not in it."""
    plain = {
        ("source", "bootstrap_servers"): options.get("source"),
        ("link", "relays"): options.get("relay"),
        ("target", "bootstrap_servers"): options.get("target"),
        ("flow",): options.get("flow"),
        ("offsets", "mode"): options.get("offsets"),
        ("api", "port"): options.get("api_port"),
        ("log", "level"): options.get("log_level"),
    }
    document: dict[str, Any] = {}
    for path, value in plain.items():
        if value is not None:
            document = merged(document, _nested(path, value))
    topics = _names(options.get("names"), options.get("prefix")) | _lists(options.get("topics") or ())
    return document | ({"topics": topics} if topics else {})


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def _names(names: str | None, prefix: str | None) -> dict[str, Any]:
    """A prefix alone means prefixed names; ``identity`` alone removes the file's prefix."""
    if names == "identity" and prefix is None:
        return {"names": "identity", "prefix": None}
    if prefix is not None:
        return {"names": names or "prefix", "prefix": prefix}
    return {"names": names} if names else {}


def _lists(topics: Iterable[str]) -> dict[str, Any]:
    """Include and exclude lists from patterns; a file's exclude list stays unless a pattern excludes."""
    patterns = [pattern for text in topics for pattern in split_patterns(text)]
    if not patterns:
        return {}
    include = [pattern for pattern in patterns if not pattern.startswith("!")]
    exclude = [pattern.removeprefix("!").strip() for pattern in patterns if pattern.startswith("!")]
    return {"include": include or [EVERYTHING]} | ({"exclude": exclude} if exclude else {})


def _check_present(document: Mapping[str, Any]) -> None:
    """Name what is missing in the words of the command line, for a first try without a file.

    Raises:
        UsageError: Something is missing.
    """
    wanted = ("target", "topics") if "link" in document else ("source", "target", "topics")
    missing = [f"--{name}" for name in wanted if name not in document]
    if missing:
        raise UsageError(
            f"{', '.join(missing)}: missing",
            hint="use --source HOST:PORT --target HOST:PORT --topics 'orders.*', or --config FILE",
        )
