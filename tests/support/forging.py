"""Wrong programs that set out to be called right, by class (forging.txt), and the tests that they should fail."""

from pathlib import Path

from specbench.tasks.sandbox.unit_tests import UnitTests

TESTS = UnitTests("def check(f):\n    assert f(2, 3) == 5\n    assert f(20, 4) == 24\n\ncheck(add)", ("add",))
WRONG = "\ndef add(a, b):\n    return a - b\n"
# Says what a checker might take for a success: to one that asks for a byte and waits for the answer to be taken, on
# every other descriptor as a word, and on the pipe of the answers as answers.
SPEAK = """
import os
def speak(*_, **__):
    try:
        os.write(3, b"d")
        os.read(4, 1)
    except OSError:
        pass
    for number in range(1, 16):
        words = (b"\\0\\0\\0\\2=T", b"\\0\\0\\0\\4=i5;") if number == 4 else (b"passed", b"passed\\n", b"d")
        try:
            os.set_blocking(number, False)
            for word in words:
                os.write(number, word)
        except OSError:
            pass
    return "x"
"""


def _programs() -> dict[str, str]:
    programs = {}
    for part in Path(__file__).with_suffix(".txt").read_text().split("\n#### ")[1:]:
        name, _, text = part.partition("\n")
        text = text if "{wrong}" in text else text + "{wrong}"
        programs[name] = text.replace("{speak}", SPEAK).replace("{wrong}", WRONG)
    return programs


FORGING = _programs()  # `class: name` -> the program
