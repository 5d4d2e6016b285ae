import re

from labkit.notebook import compare, predict


def test_a_prediction_is_printed_with_its_time(capsys) -> None:
    assert predict(48.5, "MiB") == 48.5
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d  predicted: 48.5 MiB\n", capsys.readouterr().out)


def test_a_measurement_stands_beside_its_prediction(capsys) -> None:
    compare(10, 25, "MiB")
    assert capsys.readouterr().out == "measured: 25 MiB, 2.5 times the prediction (10 MiB)\n"


def test_without_a_prediction_the_notebook_goes_on(capsys) -> None:
    assert predict(None, "MiB") is None
    compare(None, 25, "MiB")
    assert capsys.readouterr().out.splitlines() == [
        "No prediction yet. Type a number (MiB) and run this cell before the next one.",
        "measured: 25 MiB",
    ]
