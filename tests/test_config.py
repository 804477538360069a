"""Environment variables: every accepted form, every designed error, the table in README.md."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from jaxmono import _config, _logging
from jaxmono._errors import ConfigError, JaxmonoWarning


def test_defaults_with_an_empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    config = _config.read({})
    assert config.logs is None
    assert config.dump_to is None
    assert config.cache is True
    assert config.cache_dir == Path("/xdg/jaxmono")
    assert config.cache_max_bytes == 2**30
    assert config.interpret_blocks == 4
    assert config.interpret_seed == 0


def test_empty_text_is_unset() -> None:
    assert _config.read({"JAXMONO_CACHE": " ", "JAXMONO_LOGS": ""}) == _config.read({})


@pytest.mark.parametrize(("text", "value"), [("on", True), ("1", True), ("YES", True),
                                              ("off", False), ("0", False), ("False", False)])
def test_switch(text: str, value: bool) -> None:
    assert _config.read({"JAXMONO_CACHE": text}).cache is value


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("123", 123), ("1_000", 1000),
                                              ("2GiB", 2**31), ("500 MB", 500_000_000),
                                              ("3k", 3000)])
def test_sizes(text: str, value: int) -> None:
    assert _config.read({"JAXMONO_CACHE_MAX_BYTES": text}).cache_max_bytes == value


def test_logs_level_and_topics() -> None:
    spec = _config.read({"JAXMONO_LOGS": "debug,driver,cache"}).logs
    assert spec == _config.LogSpec(logging.DEBUG, ("driver", "cache"))
    assert _config.read({"JAXMONO_LOGS": "info"}).logs == _config.LogSpec(logging.INFO, ())
    assert _config.read({"JAXMONO_LOGS": "off"}).logs is None


@pytest.mark.parametrize(("name", "text", "says"), [
    ("JAXMONO_CACHE", "maybe", "'on'"),
    ("JAXMONO_LOGS", "debgu", "Did you mean 'debug'?"),
    ("JAXMONO_LOGS", "debug,drivr", "Did you mean 'driver'?"),
    ("JAXMONO_CACHE_MAX_BYTES", "plenty", "2GiB"),
    ("JAXMONO_CACHE_MAX_BYTES", "-1", "number of bytes"),
    ("JAXMONO_INTERPRET_BLOCKS", "0", "from 1 to 64"),
    ("JAXMONO_INTERPRET_BLOCKS", "two", "integer from 1 to 64"),
    ("JAXMONO_INTERPRET_SEED", "-3", "from 0 to"),
])
def test_bad_values_name_variable_value_and_accepted_form(name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as info:
        _config.read({name: text})
    message = str(info.value)
    assert name in message and repr(text) in message and says in message


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("")
    for name in ("JAXMONO_CACHE_DIR", "JAXMONO_DUMP_TO"):
        with pytest.raises(ConfigError, match="it is a file; name a directory"):
            _config.read({name: str(file)})


def test_an_unknown_variable_is_one_warning_with_the_near_name() -> None:
    env = {"JAXMONO_DUMPTO_X": "/tmp"}
    with pytest.warns(JaxmonoWarning, match="Did you mean 'JAXMONO_DUMP_TO'") as seen:
        _config.read(env)
        _config.read(env)
    assert len(seen) == 1


def test_logging_follows_the_variable(monkeypatch: pytest.MonkeyPatch,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("JAXMONO_LOGS", "info,driver")
    _logging.configure()
    try:
        _logging.get("driver").info("seen")
        _logging.get("driver").debug("too low")
        _logging.get("cache").info("other topic")
    finally:
        monkeypatch.delenv("JAXMONO_LOGS")
        _logging.configure()
    _logging.get("driver").info("off again")
    assert capsys.readouterr().err.splitlines()[-1].endswith("jaxmono.driver I seen")


def test_timed_logs_and_sums() -> None:
    sums: dict[str, float] = {}
    for _ in range(2):
        with _logging.timed(_logging.get("driver"), "phase", sums):
            pass
    assert list(sums) == ["phase"] and sums["phase"] >= 0


def test_every_setting_has_a_field_and_a_row() -> None:
    fields = set(_config.Config.__dataclass_fields__)
    assert {s.field for s in _config.SETTINGS} == fields
    assert all(f"`{s.name}`" in _config.table() for s in _config.SETTINGS)


@pytest.mark.parametrize(("flags", "asked"), [
    ("", False), ("--xla_gpu_deterministic_ops=true", True), ("--xla_gpu_deterministic_ops", True),
    ("--xla_dump_to=/x --xla_gpu_exclude_nondeterministic_ops=1", True),
    ("--xla_gpu_deterministic_ops=false", False), ("--xla_gpu_deterministic_ops=0", False),
    ("--xla_gpu_deterministic_ops=true --xla_gpu_deterministic_ops=false", False)])
def test_xla_is_asked_for_the_same_bits(flags: str, asked: bool) -> None:
    assert _config.same_bits_on_every_run({"XLA_FLAGS": flags}) is asked
    assert not _config.same_bits_on_every_run({})
