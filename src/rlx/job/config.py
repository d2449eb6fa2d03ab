"""job.toml, environment and flags to one checked configuration.

Defaults < file < environment (`RLX_SECTION_KEY`) < `--set section.key=value`. An unknown key is an
error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx.errors import ConfigError
from rlx.job.settings import FREE_SECTIONS, OPTIONAL_SECTIONS, REQUIRED, SECTIONS, Setting

FILE_LIMIT_BYTES = 1 << 20
_ENVIRONMENT_PREFIX = "RLX_"


@dataclass(frozen=True)
class JobConfig:
    """A job's settings, checked: `config.section("job")["epochs"]`."""

    path: Path
    sections: Mapping[str, Mapping[str, Any]]

    @property
    def folder(self) -> Path:
        """The folder that the job's relative paths start from."""
        return self.path.parent

    def section(self, name: str) -> Mapping[str, Any]:
        """All settings of a section, defaults included; empty if an optional one is left out."""
        return self.sections.get(name, {})


def load_config(path: Path, environ: Mapping[str, str], overrides: Iterable[str]) -> JobConfig:
    """Read and check a job. Raises `ConfigError` with the place of what is wrong."""
    given: dict[str, dict[str, Any]] = {}
    for name, section in _read(path).items():
        if not isinstance(section, dict):
            raise ConfigError(f"{path}: {name!r} stands outside of a section; {_known_sections()}")
        _check_section(name, str(path))
        for key, value in section.items():
            _put(given, name, key, value, f"{path}: ")
    for variable, value in sorted(environ.items()):
        place = _environment_place(variable)
        if place is not None:
            _put(given, *place, _parsed(value), f"{variable}: ")
    for override in overrides:
        section, key, value = _override(override)
        _put(given, section, key, value, f"--set {override}: ")
    return JobConfig(path.resolve(), _completed(given, path))


def default_settings(section: str) -> dict[str, Any]:
    """A section as it is where no job says anything of it."""
    return {key: setting.default for key, setting in SECTIONS[section].items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the job {path}: {error.strerror}") from error
    if len(content) > FILE_LIMIT_BYTES:
        raise ConfigError(f"{path} is over {FILE_LIMIT_BYTES} bytes: is it a job file?")
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {_explained(str(error))}") from error


def _explained(message: str) -> str:
    """tomllib says "Cannot overwrite a value" of a key that stands twice; say what that means."""
    twice = "overwrite" in message or "twice" in message or "redefine" in message
    return f"duplicate key: {message}" if twice else message


def _check_section(name: str, where: str) -> None:
    if name not in SECTIONS:
        raise ConfigError(f"{where}: there is no section [{name}]{_nearest(name, SECTIONS)}")


def _put(given: dict[str, dict[str, Any]], section: str, key: str, value: Any, where: str) -> None:
    _check_section(section, where.removesuffix(": "))
    if section in FREE_SECTIONS:
        if not isinstance(value, str):
            raise ConfigError(f"{where}{section}.{key} is text; got {value!r}")
    elif key not in SECTIONS[section]:
        elsewhere = [name for name, keys in SECTIONS.items() if key in keys]
        hint = f"; {key} belongs to [{elsewhere[0]}]" if elsewhere else ""
        nearest = hint or _nearest(key, SECTIONS[section])
        raise ConfigError(f"{where}there is no key {key!r} in [{section}]{nearest}")
    else:
        _check_value(SECTIONS[section][key], section, key, value, where)
    given.setdefault(section, {})[key] = value


def _check_value(setting: Setting, section: str, key: str, value: Any, where: str) -> None:
    if value is None or not setting.check(value):
        raise ConfigError(f"{where}{section}.{key} is {setting.expected}; got {value!r}")


def _completed(given: Mapping[str, Mapping[str, Any]], path: Path) -> dict[str, Mapping[str, Any]]:
    complete: dict[str, Mapping[str, Any]] = {}
    for section, settings in SECTIONS.items():
        if section in FREE_SECTIONS:
            complete[section] = dict(given.get(section, {}))
            continue
        if section in OPTIONAL_SECTIONS and section not in given:
            continue
        values = default_settings(section)
        values.update(given.get(section, {}))
        missing = [key for key, value in values.items() if value is REQUIRED]
        if missing:
            first = missing[0]
            raise ConfigError(
                f"{path}: [{section}] has no {first}: {settings[first].expected} "
                f"({settings[first].help})"
            )
        complete[section] = values
    return complete


def _environment_place(variable: str) -> tuple[str, str] | None:
    """(section, key) of a variable such as RLX_JOB_EPOCHS; None if it is no setting."""
    if not variable.startswith(_ENVIRONMENT_PREFIX):
        return None
    section, _, key = variable.removeprefix(_ENVIRONMENT_PREFIX).lower().partition("_")
    return (section, key) if section in SECTIONS and key else None


def _override(text: str) -> tuple[str, str, Any]:
    place, separator, value = text.partition("=")
    section, dot, key = place.strip().partition(".")
    if not separator or not dot or not key:
        raise ConfigError(f"--set takes section.key=value, such as job.epochs=2; got {text!r}")
    return section, key, _parsed(value)


def _parsed(text: str) -> Any:
    """A TOML value, or the text itself where it is none: `--set net.transport=tcp` needs no
    quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text.strip()


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, 1, 0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}"


def _known_sections() -> str:
    return "the sections are " + ", ".join(f"[{name}]" for name in SECTIONS)
