"""Requests that copy (edit a text, extract from one, go on with code that repeats itself), and free prose. Knows no
engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["COPIED", "COPYING", "LOOP", "RUN", "WORKS", "Work", "copied", "loops"]

LOOP = 64
"""Tokens at the end of an answer in which nothing may repeat itself."""
RUN = 4
COPIED = 0.75
"""An answer copies if so much of it lies in runs of RUN tokens that stood before. A small model does not always do what
it is asked, and an answer that was written anew is no copying work."""

STORY = (
    "The lighthouse keeper had a dog called Bramble. Every evening at six they climbed the ninety steps to the lamp. "
    "The keeper cleaned the glass while Bramble watched the ships. On the third of March a fog came in from the north, "
    "and for two days nobody saw the harbour. On the second night the lamp went out. The keeper found that the oil had "
    "been stolen, and only one footprint was left on the floor. Bramble sniffed at it and ran down to the boats. There "
    "sat an old man with a can between his knees. He said that his own lamp had been dark for a week, and that his son "
    "was still at sea. The keeper gave him half of the oil and carried the rest up the stairs. Before midnight both "
    "lamps burned again, and at dawn three ships came home through the fog. "
)
NOTICE = (
    "The library will be closed from Monday, 3 June, until Friday, 14 June, while the roof is mended. Books that "
    "are due in these two weeks may be returned on Saturday, 15 June, without a fine. Readers with a yellow card "
    "can use the reading room of the town hall between nine and five. Please ask Mrs Hall at the desk for a key to "
    "the lockers. The children's hour on Wednesday, 5 June, moves to the school in Mill Lane. Newspapers lie in the "
    "hall of the post office, and the photocopier stands in the baker's shop. Loans from other libraries arrive a "
    "week later than usual. The library opens again on Monday, 17 June, at ten, with tea and cake for everybody who "
    "comes."
)
LETTER = (
    "Dear Mr Parker, thank you for your letter of 12 April. We are sorry that the kettle which we sent you was broken. "
    "We will send you a new one this week, and you do not need to send the old one back. The new kettle comes with a "
    "guarantee of three years. If it does not arrive by the end of the month, please call our office in Bristol between"
    " eight and four. You also asked about the blue teapot in our spring catalogue. It is no longer made, but we still "
    "have two of them in our shop in Bath, and we can keep one for you until the tenth of May. With this letter you "
    "find a voucher for ten pounds, which you can use in all our shops. Yours sincerely, Anna Webb."
)
RECORDS = "\n".join(
    f"Order {1040 + 7 * number}: {name}, {2 + number} pieces, to {town}, {'paid' if number % 3 else 'not paid'}."
    for number, (name, town) in enumerate(
        [
            ("blue lantern", "Hull"),
            ("rope of twenty metres", "Leeds"),
            ("brass compass", "Dover"),
            ("storm glass", "Whitby"),
            ("oilskin coat", "Grimsby"),
            ("sounding lead", "Hull"),
            ("signal flag", "Dover"),
        ]
    )
)
MINUTES = (
    "The meeting began at ten. Mr Lowe said that the bridge must be closed in winter. Mrs Hart asked who would pay for "
    "the new road. Mr Lowe answered that the county would pay for half of it. Miss Dean said that the school bus could "
    "not use the old road. Mrs Hart proposed to ask the parents first. Mr Lowe agreed. The treasurer read the accounts "
    "of last year. Miss Dean asked why the hall had cost more than planned. The treasurer said that the price of coal "
    "had gone up twice. Mrs Hart thanked him for his work. The next meeting will be on the second of May. Mr Lowe will "
    "bring a map of the road. The meeting ended at noon."
)
CODE = """class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if amount > self.balance:
            raise ValueError("balance is too small")
        self.balance = self.balance - amount
        return self.balance
"""
TESTS = """def test_add_two_positive_numbers():
    calculator = Calculator(precision=4)
    result = calculator.add(2, 3)
    assert result == 5
    assert calculator.history[-1] == ("add", 2, 3, 5)


def test_subtract_two_positive_numbers():
    calculator = Calculator(precision=4)
    result = calculator.subtract(7, 3)
    assert result == 4
    assert calculator.history[-1] == ("subtract", 7, 3, 4)


def test_multiply"""
TABLE = """<table class="prices">
  <tr class="row">
    <td class="name">Brass compass</td>
    <td class="price">24.50</td>
    <td class="stock">12 in stock</td>
  </tr>
  <tr class="row">
    <td class="name">Storm glass</td>
    <td class="price">18.00</td>
    <td class="stock">7 in stock</td>
  </tr>
  <tr class="row">
    <td class="name">Signal flag"""
GETTERS = """public class Ship {
    private String name;
    private int length;
    private String harbour;
    private double draught;
    private String captain;

    public String getName() {
        return this.name;
    }

    public void setName(String name) {
        this.name = name;
    }

    public int getLength() {
        return this.length;
    }

    public void set"""


class Work(NamedTuple):
    """A request: a question in a chat, or (`raw`) a text to go on with."""

    text: str
    raw: bool = False


WORKS: dict[str, list[Work]] = {
    "edit": [
        Work(f"Correct the spelling of this text and repeat all of it:\n\n{STORY}"),
        Work(f"Repeat these minutes, but write Mr Brown instead of Mr Lowe:\n\n{MINUTES}"),
        Work(f"Repeat this notice word for word:\n\n{NOTICE}"),
        Work(f"Rewrite this notice with July instead of June:\n\n{NOTICE}"),
        Work(f"Correct the mistakes in this letter and show all of it:\n\n{LETTER}"),
        Work(f"Repeat this letter, but to Mrs Brown:\n\n{LETTER}"),
    ],
    "extract": [
        Work(f"Copy every order that goes to Hull or Dover:\n\n{RECORDS}"),
        Work(f"List all the orders that are paid, in the same words:\n\n{RECORDS}"),
        Work(f"Repeat the list of orders, sorted by number:\n\n{RECORDS}"),
        Work(f"Write down everything that Mr Lowe said or did, in the same words:\n\n{MINUTES}"),
        Work(f"Make a list of the sentences of this text, numbered:\n\n{MINUTES}"),
        Work(f"Copy all sentences of this notice that have a date in them:\n\n{NOTICE}"),
    ],
    "code": [
        Work(TESTS, raw=True),
        Work(TABLE, raw=True),
        Work(GETTERS, raw=True),
        Work(CODE + "\n\nclass SavingsAccount:\n    def __init__(self, owner, balance, rate):", raw=True),
        Work(f"Rename Account to Wallet in this code and show all of it:\n\n```python\n{CODE}```"),
        Work(f"Add docstrings to every method of this class and show all of it:\n\n```python\n{CODE}```"),
    ],
    "prose": [
        Work("Write a short story about a painter who loses her sight."),
        Work("Explain why the sky is blue to a child."),
        Work("What should a person think about before moving to another country?"),
        Work("Describe a busy market in the morning."),
    ],
}
COPYING = ("edit", "extract", "code")


def loops(tokens: list[int]) -> bool:
    """Do the last tokens consist of one run, again and again?"""
    end = tokens[-LOOP:]
    return any(end[period:] == end[:-period] for period in range(1, len(end) // 2 + 1))


def copied(prompt: Sequence[int], answer: Sequence[int]) -> float:
    """The share of the answer's tokens that lie in a run of RUN tokens that stood before, in either."""
    tokens, begin = [*prompt, *answer], len(prompt)
    runs: set[tuple[int, ...]] = set()
    found: set[int] = set()
    for end in range(RUN, len(tokens) + 1):
        run = tuple(tokens[end - RUN : end])
        if run in runs:
            found.update(range(max(end - RUN, begin), end))
        runs.add(run)
    return len(found) / len(answer)
