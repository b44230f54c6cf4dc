"""Languages of prompts, as rules need them."""

from __future__ import annotations

import pytest

from octavo.routing.language import LANGUAGES, language_of


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("What is the capital of Peru, and how many people live there?", "en"),
        ("Was ist die Hauptstadt von Peru und wie viele Menschen leben dort?", "de"),
        ("Quelle est la capitale du Pérou et combien de personnes y vivent?", "fr"),
        ("¿Cuál es la capital de Perú y qué se come en la ciudad?", "es"),
        ("Qual è la capitale del Perù e come si arriva nel centro?", "it"),
        ("Wat is de hoofdstad van Peru en hoe kan ik het vinden?", "nl"),
        ("Qual é a capital do Peru e como não se perder na cidade?", "pt"),
        ("Jaka jest stolica Peru i co można tam zobaczyć? Nie wiem, czy to dobre.", "pl"),
        ("Vad är huvudstaden i Peru och hur kan jag resa till den?", "sv"),
        ("ペルーの首都はどこですか?", "ja"),
        ("秘鲁的首都是哪里?", "zh"),
        ("페루의 수도는 어디입니까?", "ko"),
        ("Какая столица Перу?", "ru"),
        ("ما هي عاصمة بيرو؟", "ar"),
        ("Ποια είναι η πρωτεύουσα του Περού;", "el"),
        ("Explain GPT-4 на русском, пожалуйста", "ru"),
        ("x = 3 + 4", None),
        ("", None),
        ("Peru", None),
    ],
)
def test_of_short_prompts(text: str, language: str | None) -> None:
    assert language_of(text) == language
    assert language is None or language in LANGUAGES
