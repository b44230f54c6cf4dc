"""Text ↔ token ids, exactly as the model was trained on. Knows no tensors and no templates.

The `tokenizers` library does the merging; this file gives it the right rules. Three families:

- `gpt2`: byte-level BPE (Radford et al. 2019) with one of the pre-tokenizers in `PRE_TOKENIZERS`,
- `llama`: SentencePiece BPE, whose merge order follows from the pieces' scores, with byte fallback,
- `t5`: SentencePiece unigram (Kudo 2018, arXiv:1804.10959).

Text from a user never becomes a control token: control tokens are cut out of a text here, only when asked
to, and whatever else could spell one is hidden from the library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from octavo.errors import InvalidParameter, ModelError
from octavo.text.normalizer import Normalizer
from octavo.text.vocabulary import SPACE, SPECIAL_TYPES, TokenType, Vocabulary, token_texts, token_types

__all__ = ["PRE_TOKENIZERS", "Tokenizer"]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

PRE_TOKENIZERS: Mapping[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_WORDS % r"\p{N}{1,3}",),
    "qwen2": (_WORDS % r"\p{N}",),
}
"""`tokenizer.ggml.pre` → regular expressions; each cuts what the one before left into matches and gaps."""

_WHOLE_WORDS = frozenset({"llama-bpe"})
"""Pre-tokenizers whose words, where they are tokens, are taken whole without merging; these also add BOS."""

_MAX_PIECE = 1024
"""Characters in a SentencePiece piece whose splits are listed (the list grows with the square)."""


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the `tokenizers` file cannot say; saved beside it."""

    byte_level: bool
    bos_id: int | None
    add_bos: bool
    add_space_prefix: bool = False
    collapse_spaces: bool = False
    character_map: bytes | None = None
    protected: tuple[str, ...] = ()
    """User-defined pieces, as they stand in a text."""
    fallback: tuple[int, ...] = ()
    """256 ids, one for each byte, by which unigram spells unknown characters; () where it has none."""
    unknown_id: int | None = None
    infill_ids: tuple[int, ...] = ()
    """To fill in the middle: prefix, suffix and perhaps middle token, where the model file names them."""


class Tokenizer:
    """One model's tokenizer. Immutable and safe to use from several threads."""

    def __init__(self, library: tokenizers.Tokenizer, vocabulary: Vocabulary, rules: Rules) -> None:
        self._library = library
        self._library.encode_special_tokens = True  # control tokens in a text are plain text
        self.vocabulary = vocabulary
        self.rules = rules
        self._normalizer = None if rules.byte_level else _normalizer(rules, rules.add_space_prefix)
        control = sorted(vocabulary.special, reverse=True)  # of equal names, the lowest id stays
        names = {vocabulary.pieces[i].decode(errors="replace"): i for i in control}
        names.pop("", None)
        self._special = names
        longest_first = sorted(names, key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if names else None

    @property
    def bos_id(self) -> int | None:
        return self.rules.bos_id

    @property
    def add_bos(self) -> bool:
        """Whether a text begins with BOS unless the caller says otherwise."""
        return self.rules.add_bos

    @property
    def drops_leading_space(self) -> bool:
        """Whether the first space of decoded text is the tokenizer's own (SentencePiece's prefix)."""
        return self.rules.add_space_prefix

    def encode(
        self,
        text: str,
        *,
        allow_special: bool = False,
        add_bos: bool | None = None,
        mark: str = "",
        goes_on: bool = False,
    ) -> list[int]:
        """The ids of `text`.

        `allow_special`: names of control tokens in the text stand for those tokens (a rendered template);
        without it they are letters like any others (what a user wrote). `add_bos` None follows the model's
        own rule; BOS is never doubled. `mark` is the character with which parts of the text were guarded; it is
        taken out. `goes_on`: SentencePiece's leading space is not added (only without `allow_special`). Raises
        InvalidParameter for text that UTF-8 cannot hold.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidParameter(
                f"The text has a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}, "
                "which is not a character; send valid Unicode."
            ) from None
        if allow_special and self._cut is not None:
            ids = self._encode_with_special(text, self._cut, mark)
        else:
            ids = self._encode_plain(text.replace(mark, "") if mark else text, goes_on=goes_on)
        bos = self.rules.bos_id
        if bos is not None and (self.rules.add_bos if add_bos is None else add_bos) and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`: broken UTF-8 becomes U+FFFD, SentencePiece's leading space is dropped."""
        text = self.vocabulary.join(ids, skip_special).decode(errors="replace")
        return text.removeprefix(" ") if self.drops_leading_space else text

    def guard(self, text: str, mark: str) -> str:
        """The text with `mark`, a character that is not in it, before each letter of every control token's name.

        Encoded with `allow_special` and the mark, beside other text, it stays text.
        """
        if self._cut is None:
            return text
        return self._cut.sub(lambda match: "".join(mark + letter for letter in match[0]), text)

    def _encode_with_special(self, text: str, cut: re.Pattern[str], mark: str) -> list[int]:
        ids: list[int] = []
        at = 0
        for match in cut.finditer(text):
            start = match.start()
            if mark and text[start - 1 : start] == mark:
                continue  # a guarded name of one letter; longer ones do not match
            ids += self._encode_plain(text[at:start].replace(mark, "") if mark else text[at:start])
            ids.append(self._special[match[0]])
            at = match.end()
        return ids + self._encode_plain(text[at:].replace(mark, "") if mark else text[at:])

    def _encode_plain(self, text: str, *, goes_on: bool = False) -> list[int]:
        if self._normalizer is not None:
            normalizer = _normalizer(self.rules, False) if goes_on else self._normalizer
            text = normalizer(text)
        if not text:
            return []
        encoding = self._library.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        fallback, unknown = self.rules.fallback, self.rules.unknown_id
        if not fallback or unknown not in ids:
            return ids
        spelled: list[int] = []
        for token, (start, end) in zip(ids, encoding.offsets, strict=True):
            if token == unknown:
                spelled.extend(fallback[byte] for byte in text[start:end].encode())
            else:
                spelled.append(token)
        return spelled

    def save(self, path: str | Path) -> None:
        """Write `path` (the library's JSON) and, beside it, `tokenizer.rules.json` and `vocabulary.bin`."""
        path = Path(path)
        path.write_bytes(_quick_to_read(self._library.to_str()))
        _rules_path(path).write_bytes(msgspec.json.encode(self.rules))
        self.vocabulary.save(path.with_name("vocabulary.bin"))

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read what `save` wrote. Raises ModelError when a file is missing or damaged."""
        path = Path(path)
        vocabulary = Vocabulary.load(path.with_name("vocabulary.bin"))
        try:
            rules = msgspec.json.decode(_rules_path(path).read_bytes(), type=Rules)
            library = tokenizers.Tokenizer.from_file(str(path))
            return cls(library, vocabulary, rules)
        except Exception as error:  # the library raises bare Exception
            raise ModelError(
                f"The tokenizer {path} cannot be read ({error}); "
                "delete its folder and the model is converted anew."
            ) from error

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build from the keys `tokenizer.ggml.*`. Raises ModelError for what is missing or unknown."""
        family = metadata.get("tokenizer.ggml.model")
        builders = {"gpt2": _byte_level, "llama": _sentencepiece_bpe, "t5": _sentencepiece_unigram}
        if family is None:
            raise ModelError(
                "The model file does not say which tokenizer it has (tokenizer.ggml.model); its text cannot be read."
            )
        if not isinstance(family, str) or family not in builders:
            raise ModelError(
                f"The model's tokenizer is {family!r:.60} (tokenizer.ggml.model); "
                f"known are {', '.join(builders)}. Choose another model."
            )
        vocabulary = Vocabulary.from_gguf(metadata)
        try:
            library, rules = builders[family](metadata, _Pieces(metadata))
        except ModelError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise ModelError(
                f"The model's tokenizer cannot be built ({error}); fetch the model again."
            ) from error
        rules = msgspec.structs.replace(rules, infill_ids=_infill_ids(metadata, vocabulary.size))
        return cls(library, vocabulary, rules)


class _Pieces:
    """The token table on its way into the library: names that are unique and cannot be spelled by mistake."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.texts = token_texts(metadata)
        self.types = token_types(metadata)
        self.names = list(self.texts)
        seen: set[str] = set()
        for i, name in enumerate(self.names):
            if name in seen:
                self.hide(i)
            seen.add(name)

    def hide(self, token: int) -> None:
        """Give the id a name with a plain space: normalized text has none, so nothing can spell it."""
        self.names[token] = f" {token}"

    def hidden(self, token: int) -> bool:
        return self.names[token] == f" {token}"

    def of_type(self, *kinds: TokenType) -> list[int]:
        return [i for i, kind in enumerate(self.types) if kind in kinds]

    def table(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def add_to(self, library: tokenizers.Tokenizer) -> None:
        """User-defined tokens are cut out of every text; control tokens are named for the saved file's other
        readers."""
        control = [self.names[i] for i in self.of_type(*SPECIAL_TYPES) if not self.hidden(i)]
        user = [self.names[i] for i in self.of_type(TokenType.USER_DEFINED) if not self.hidden(i)]
        library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in control])
        library.add_tokens([AddedToken(name, special=False, normalized=False) for name in user])


def _byte_level(metadata: Mapping[str, Any], pieces: _Pieces) -> tuple[tokenizers.Tokenizer, Rules]:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise ModelError(
            f"The model's pre-tokenizer is {pre!r:.60} (tokenizer.ggml.pre); "
            f"known are {', '.join(PRE_TOKENIZERS)}. Choose another model."
        )
    lines = metadata.get("tokenizer.ggml.merges")
    if lines is None:
        raise ModelError(
            "The model file has no merges (tokenizer.ggml.merges); its tokenizer cannot be built."
        )
    control = {pieces.names[i] for i in pieces.of_type(*SPECIAL_TYPES)}
    merges = [merge for merge in map(_merge, lines) if "".join(merge) not in control]
    whole_words = pre in _WHOLE_WORDS
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[pre]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def build() -> tokenizers.Tokenizer:
        model = models.BPE(pieces.table(), merges, fuse_unk=False, ignore_merges=whole_words)
        library = tokenizers.Tokenizer(model)
        library.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
        library.decoder = decoders.ByteLevel()
        return library

    library = _without_spelled_control(build, pieces)
    pieces.add_to(library)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    return library, Rules(
        byte_level=True,
        bos_id=bos,
        add_bos=bos is not None and bool(metadata.get("tokenizer.ggml.add_bos_token", whole_words)),
    )


def _sentencepiece_bpe(metadata: Mapping[str, Any], pieces: _Pieces) -> tuple[tokenizers.Tokenizer, Rules]:
    """SentencePiece merges, of all neighbours whose join is a piece, best score first, then leftmost.
    So the (left, right) splits of all pieces, listed best first, are BPE merges with just that order."""
    scores = _scores(metadata, pieces)
    _escape_user_defined(pieces)
    spellable = pieces.of_type(TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
    names = {pieces.names[i] for i in spellable if not pieces.hidden(i)}
    merges: list[tuple[str, str]] = []
    for i in sorted(spellable, key=lambda i: -scores[i]):  # stable: equal scores in the order of ids
        name = pieces.names[i]
        if len(name) > _MAX_PIECE:
            raise ModelError(
                f"Token {i} has {len(name)} characters; SentencePiece tokens of more than {_MAX_PIECE} "
                "are not supported."
            )
        splits = ((name[:cut], name[cut:]) for cut in range(1, len(name)))
        merges.extend(split for split in splits if split[0] in names and split[1] in names)
    unknown = _unknown(metadata, pieces)

    def build() -> tokenizers.Tokenizer:
        unk_token = None if unknown is None else pieces.names[unknown]
        model = models.BPE(pieces.table(), merges, unk_token=unk_token, fuse_unk=True, byte_fallback=True)
        library = tokenizers.Tokenizer(model)
        library.decoder = _sentencepiece_decoder()
        return library

    library = _without_spelled_control(build, pieces)
    pieces.add_to(library)
    return library, _sentencepiece_rules(metadata, pieces, add_bos=True)


def _sentencepiece_unigram(
    metadata: Mapping[str, Any], pieces: _Pieces
) -> tuple[tokenizers.Tokenizer, Rules]:
    """The most likely segmentation. The library would find any entry in a text, so all but text is hidden."""
    scores = _scores(metadata, pieces)
    _escape_user_defined(pieces)
    fallback = {pieces.texts[i]: i for i in pieces.of_type(TokenType.BYTE)}
    for i in pieces.of_type(*SPECIAL_TYPES, TokenType.BYTE):
        pieces.hide(i)
        scores[i] = 0.0  # the worst score sets the price of an unknown character; these must not count
    unknown = _unknown(metadata, pieces)
    if unknown is None:
        raise ModelError("The model's unigram tokenizer has no unknown token; fetch the model again.")
    model = models.Unigram(list(zip(pieces.names, scores, strict=True)), unknown, byte_fallback=False)
    library = tokenizers.Tokenizer(model)
    library.decoder = _sentencepiece_decoder()
    pieces.add_to(library)
    spelled = [f"<0x{byte:02X}>" for byte in range(256)]
    rules = _sentencepiece_rules(metadata, pieces, add_bos=False)
    if all(name in fallback for name in spelled):
        rules = msgspec.structs.replace(
            rules, fallback=tuple(fallback[name] for name in spelled), unknown_id=unknown
        )
    return library, rules


def _sentencepiece_rules(metadata: Mapping[str, Any], pieces: _Pieces, *, add_bos: bool) -> Rules:
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    charsmap = metadata.get("tokenizer.ggml.precompiled_charsmap")
    return Rules(
        byte_level=False,
        bos_id=bos,
        add_bos=bos is not None and bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)),
        add_space_prefix=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
        collapse_spaces=bool(metadata.get("tokenizer.ggml.remove_extra_whitespaces", False)),
        character_map=None if charsmap is None else bytes(bytearray(charsmap)) or None,
        protected=tuple(pieces.texts[i] for i in pieces.of_type(TokenType.USER_DEFINED)),
    )


def _sentencepiece_decoder() -> decoders.Decoder:
    """For other readers of the saved file; our own decoding is the vocabulary's bytes."""
    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])


def _normalizer(rules: Rules, add_prefix: bool) -> Normalizer:
    return Normalizer(
        add_prefix=add_prefix,
        collapse=rules.collapse_spaces,
        character_map=rules.character_map,
        protected=rules.protected,
    )


def _infill_ids(metadata: Mapping[str, Any], size: int) -> tuple[int, ...]:
    """Prefix, suffix and middle token as the file names them, by the newer or the older keys."""
    ids: list[int] = []
    for names in (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle")):
        given = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names]
        token = next((int(one) for one in given if one is not None and 0 <= one < size), None)
        if token is None:
            break
        ids.append(token)
    return tuple(ids) if len(ids) > 1 else ()


def _scores(metadata: Mapping[str, Any], pieces: _Pieces) -> list[float]:
    scores: Sequence[float] | None = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(pieces.texts):
        raise ModelError(
            f"The model file has {len(pieces.texts)} tokens but {0 if scores is None else len(scores)} "
            "scores (tokenizer.ggml.scores); its tokenizer cannot be built."
        )
    return [float(score) for score in scores]


def _unknown(metadata: Mapping[str, Any], pieces: _Pieces) -> int | None:
    """The id of the unknown token, as the file names it or by its type."""
    named = metadata.get("tokenizer.ggml.unknown_token_id")
    if named is not None and 0 <= named < len(pieces.texts):
        return int(named)
    return next(iter(pieces.of_type(TokenType.UNKNOWN)), None)


def _escape_user_defined(pieces: _Pieces) -> None:
    """Converters write user-defined runs of spaces as spaces; in normalized text they are "▁"."""
    taken = set(pieces.names)
    for i in pieces.of_type(TokenType.USER_DEFINED):
        escaped = pieces.names[i].replace(" ", SPACE)
        if not pieces.hidden(i) and escaped != pieces.names[i]:
            if escaped in taken:
                pieces.hide(i)
            else:
                pieces.names[i] = escaped
                taken.add(escaped)


def _without_spelled_control(
    build: Callable[[], tokenizers.Tokenizer], pieces: _Pieces
) -> tokenizers.Tokenizer:
    """The library, in which no text gives a control token (a word such as "PAD" taken whole could)."""
    library = build()
    control = pieces.of_type(*SPECIAL_TYPES)
    spelled = [i for i in control if i in library.encode(pieces.texts[i], add_special_tokens=False).ids]
    for i in spelled:
        pieces.hide(i)
    return build() if spelled else library


def _merge(line: str | bytes | Sequence[str]) -> tuple[str, str]:
    text = line.decode() if isinstance(line, bytes) else str(line)
    left, space, right = text.partition(" ")
    if not (left and space and right):
        raise ModelError(
            f"The merge {text!r} (tokenizer.ggml.merges) is not two pieces; the model file is damaged."
        )
    return left, right


def _quick_to_read(text: str) -> bytes:
    """The library's JSON with BPE merges as "left right", its older form, which it reads a third faster: of a
    server's start that saves a twentieth. Where that form would mean something else, they stay pairs."""
    document = msgspec.json.decode(text)
    merges = document["model"].get("merges", ())
    lines = [" ".join(merge) for merge in merges]
    if lines and not any(line.count(" ") != 1 or line.startswith("#version") for line in lines):
        document["model"]["merges"] = lines
    return msgspec.json.encode(document)


def _rules_path(path: Path) -> Path:
    return path.with_name("tokenizer.rules.json")
