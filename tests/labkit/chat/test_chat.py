"""`lab chat`: the lines of a whole run on a tiny model, and one clear message for every mistake."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from labkit.chat import lines, session, together
from labkit.chat.answer import Answer, answer
from labkit.chat.page import page
from labkit.chat.session import TINY, rehearse, talk
from labkit.chat.setting import Setting
from labkit.commands.app import app
from labkit.model.attention import CachedAttention
from labkit.model.weights import Model
from tests.labkit.chat.students import student_lab
from tests.labkit.model.tiny import SIZES, tiny_llama, tiny_text, write_tiny


@pytest.fixture(scope="module")
def model() -> Model:
    return Model("tiny", tiny_llama(), tiny_text())


@pytest.fixture(autouse=True)
def short_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MEASURED_TOKENS", 40)
    monkeypatch.setattr(session, "SCORED_TOKENS", 60)


@pytest.mark.parametrize("number", ["01", "05", "12", "14", "15"])
def test_lines_after_an_answer(
    number: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = student_lab(monkeypatch, tmp_path, number)
    talk(lab, model, model.text.chat("The sky"), 9, Setting(SIZES, 30))
    printed = capsys.readouterr().out
    assert ("your code: " if number == "15" else f"your code in {SIZES.layers} layers: ") in printed
    assert "speed: " in printed
    assert ("memory: for 40 tokens" in printed) == (number != "15")
    assert ("drafts were taken back" in printed) == (number == "15")
    assert "holds up to 0 bytes" not in printed
    assert "cache: " in printed
    assert "torch's own attention" in printed
    assert ("perplexity" in printed) == (number in ("12", "14"))
    if number == "12":
        formula, found = re.search(r"cache: ([\d,]+) bytes .* yours holds ([\d,]+) bytes", printed).groups()
        assert formula == found
    if number == "05":
        assert "flash_forward 27 times" in printed
        assert "the same 9 tokens" in printed


def test_wait_before_an_answer_and_its_end_at_the_limit(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = model.text.chat("The sky")
    tokens = answer(model.llama, prompt, CachedAttention(), 9, ()).tokens
    for name in ("wait_line", "limit_line"):
        monkeypatch.setattr(lines, name, lambda *_, name=name, **__: f"<{name}>")
    for max_new, wait in ((1, ""), (9, "<wait_line>\n")):
        talk(None, model, prompt, max_new, Setting(SIZES, 30))
        begin, _, rest = capsys.readouterr().out.partition("\n")
        assert begin == f"{len(prompt)} tokens of the prompt, then at most {max_new} new ones …"
        assert rest.startswith(f"{wait}{model.text.decode(tokens[:max_new])}\n\n<limit_line>\n\nspeed: ")
    monkeypatch.setattr(model.text, "ends", (tokens[1],))
    talk(None, model, prompt, 9, Setting(SIZES, 30))
    printed = capsys.readouterr().out
    assert f"{model.text.decode(tokens[:1])}\n\nspeed: " in printed
    assert "<" not in printed


def test_only_a_long_wait_is_announced() -> None:
    slow, fast = (Answer([7] * 40, tokens=[1, 2], writing_seconds=seconds) for seconds in (3.0, 0.1))
    assert lines.wait_line(slow, 64, sees_whole_text=False) == (
        "3.0 s for a token: about 3 minutes for 64, if the answer is that long"
    )
    assert "about 6 minutes for 64" in lines.wait_line(slow, 64, sees_whole_text=True)
    assert lines.wait_line(fast, 64, sees_whole_text=False) == ""
    assert lines.limit_line(64) == "The answer stops here, at its limit of 64 tokens: --tokens 128 allows more."


@pytest.mark.parametrize(("number", "about"), [("05", "yours comes in Lab 09"), ("11", "not that of Lab 09")])
def test_a_borrowed_cache_is_not_announced_after_its_lab(number: str, about: str) -> None:
    class Borrowing:
        has_own_cache, cache_note = False, ""

        def cache_bytes(self, n_tokens: int) -> int:
            return 10 * n_tokens

    line = lines.cache_line(Borrowing(), 4, 0, number)  # type: ignore[arg-type]
    assert line == f"cache: 40 bytes for 4 tokens by the formula, 10 per token (the course's own cache: {about})"


def run_wrong(monkeypatch: pytest.MonkeyPatch, root: Path, body: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a rehearsal prints for a `flash_forward` with this body."""
    lab = student_lab(monkeypatch, root, "05")
    head = "\n\ndef flash_forward(Q, K, V, causal=False, block_q=64, block_k=64):\n"
    lab.student_file.write_text(lab.student_file.read_text(encoding="utf-8") + head + body, encoding="utf-8")
    with pytest.raises(typer.Exit) as ended:
        rehearse(lab, Setting(TINY, 64))
    assert ended.value.exit_code == 1
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    return printed


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    raise NotImplementedError()\n", "lab05 · flash_forward · not implemented yet: write it first"),
        ("    return Q @ K, None\n", "flash_forward raised RuntimeError"),
        ("    return None\n", "cannot unpack non-iterable NoneType"),
        ("    return Q[..., :1], None\n", "flash_forward returns shape (6, 37, 1), expected (6, 37, 16)"),
        ("    return Q.double(), None\n", "flash_forward returns torch.float64, expected torch.float32"),
        ("    return Q / 0, None\n", "numbers of 3,552 that are NaN or infinite"),
        ("    return 'text', None\n", "flash_forward returns a str, expected an array"),
        ("    import sys; sys.exit(3)\n", "flash_forward raised SystemExit"),
        ("    return Q +\n", "has a syntax error in line"),
    ],
)
def test_mistake_is_a_few_lines(
    body: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = run_wrong(monkeypatch, tmp_path, body, capsys)
    assert message in printed
    assert len(printed.strip().splitlines()) <= 5


def test_endless_loop_ends_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "REHEARSAL_SECONDS", 1)
    printed = run_wrong(monkeypatch, tmp_path, "    while True:\n        pass\n", capsys)
    assert "still running after 1 s of CPU time" in printed
    assert re.search(r"flash_attention\.py:\d+: ", printed)
    assert "uv run lab check 05 tells more" in printed


def test_missing_function_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = student_lab(monkeypatch, tmp_path, "05", ("def flash_forward(", "def flash_forwards("))
    with pytest.raises(typer.Exit):
        rehearse(lab, Setting(TINY, 64))
    assert "defines no flash_forward: was it renamed or deleted?" in capsys.readouterr().err


def test_wrong_values_are_told_by_the_first_other_token(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = student_lab(monkeypatch, tmp_path, "01", ("* Q.dtype.type(Q.shape[-1] ** -0.5)", "* Q.dtype.type(3)"))
    talk(lab, model, model.text.chat("The sky"), 20, Setting(SIZES, 30))
    printed = capsys.readouterr().out
    assert "torch's own attention says" in printed
    assert "uv run lab check 01 finds what is wrong" in printed


def test_several_prompts_through_the_server(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = student_lab(monkeypatch, tmp_path, "13")
    together.rehearse(lab)
    monkeypatch.setattr(together, "CACHE_BYTES", 80 * 2 * 3 * 2 * 12)
    together.talk(lab, model, ["The sky is blue because", "The sky is blue because short", "x", "The sky is"], 12)
    printed = capsys.readouterr().out
    assert "> The sky is blue because short" in printed
    assert "settings: 8 bits" in printed
    assert "QuantizedBlocks" not in printed
    assert "Server.attend" in printed
    assert printed.count("torch's own attention") == 4


def test_server_that_plans_wrongly_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = student_lab(monkeypatch, tmp_path, "13")
    more = (
        "\n\nclass Lazy(Server):\n    def plan(self):\n        return {'copies': [], 'work': []}\n\n\nServer = Lazy\n"
    )
    lab.student_file.write_text(lab.student_file.read_text(encoding="utf-8") + more, encoding="utf-8")
    with pytest.raises(typer.Exit):
        together.rehearse(lab)
    assert "step 0: nothing is computed" in capsys.readouterr().err


COMMANDS = {
    "02": "lab02 has no place in this model: its tracker",
    "06": "lab06 has no place in this model: recomputation",
    "07": "lab07 has no place in this model: linear attention",
    "10": "lab10 has no place in this model: its kernels need a GPU",
    "05 --bits 4": "--bits means nothing with lab05",
    "--plain --window 4": "--window means nothing with torch's own attention",
    "12 --bits 3": "--bits 3: it is 2, 4 or 8",
    "12 --bits 4 --sinks 1": "excludes --window and --sinks",
    "--plain --model nowhere.gguf": "nowhere.gguf: there is no such file",
    "--plain --model README.md": "README.md: not a GGUF file, or damaged",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_command_is_one_line(command: str) -> None:
    result = CliRunner().invoke(app, ["chat", *command.split()])
    assert result.exit_code == 1
    assert COMMANDS[command] in str(result.exception)


def test_a_prompt_that_is_not_unicode_is_one_line(tmp_path: Path) -> None:
    """Python makes half of a surrogate pair of each byte on the command line that is not UTF-8."""
    file = write_tiny(tmp_path / "tiny.gguf")
    result = CliRunner().invoke(app, ["chat", "--plain", "--model", str(file), "caf\udce9"])
    assert result.exit_code == 1
    assert result.output.startswith("lab chat: the text is not Unicode: '\\udce9' is half of a surrogate pair")
    assert len(result.output.splitlines()) == 1


def test_plain_answer_of_a_given_file(tmp_path: Path) -> None:
    file = write_tiny(tmp_path / "tiny.gguf")
    result = CliRunner().invoke(app, ["chat", "--plain", "--model", str(file), "--tokens", "5", "The sky"])
    assert result.exit_code == 0
    assert "2 · 3 · 2 · 8 · 4 = 384 bytes per token" in result.output


def test_interrupted_answer_ends_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_tiny(tmp_path / "tiny.gguf")

    def interrupt(found: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(lines, "speed_line", interrupt)
    result = CliRunner().invoke(app, ["chat", "--plain", "--model", str(file), "--tokens", "5", "The sky"])
    assert result.exit_code == 130
    assert result.output.endswith("lab chat: interrupted\n")


def test_show_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_tiny(tmp_path / "tiny.gguf")
    student_lab(monkeypatch, tmp_path, "01")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["chat", "01", "--show", "--model", str(file), "--tokens", "2", "The sky"])
    assert result.exit_code == 0, result.exception
    assert "written: plots/attention.html" in result.output
    assert "Attention of every head" in (tmp_path / "plots" / "attention.html").read_text(encoding="utf-8")


def test_page_holds_the_weights_and_cannot_be_broken_out_of() -> None:
    weights = torch.rand(2, 3, 4, 4)
    made = page("</script><b>", ["a", "</script>", "ö", '"'], list(weights))
    assert made.count("</script>") == 1
    (data,) = re.findall(r"const DATA = (.*);\n", made)
    read = json.loads(data)
    assert read["tokens"] == ["a", "</script>", "ö", '"']
    roots = torch.frombuffer(bytearray(base64.b64decode(read["weights"])), dtype=torch.uint8).reshape(2, 3, 4, 4)
    torch.testing.assert_close((roots.float() / 255) ** 2, weights, atol=5e-3, rtol=0)
    assert "http" not in made.replace("http-equiv", "")
