# SPDX-License-Identifier: Apache-2.0
"""Seeded byte strings that exercise tokenizers, and a small text to train them on.

Every string is bytes, because some are not UTF-8. The same seed gives the same strings.
"""

import random

SENTENCES = """
The river keeps its own time, and the boats that cross it keep theirs.
She counted 12 lamps, then 345, then 6,789 before the street turned dark.
It's what they'd said: we'll go, you're late, I've no idea, he isn't here, I'm sure.
A kettle, a map, two oranges and a letter: that was all the drawer held.
Where does the water go when the tide has nothing left to carry?
Le vent se lève à l'aube; les élèves ont déjà ouvert les fenêtres de l'école.
Der Zug fährt über die Brücke, während die Kinder draußen Schlittschuh laufen.
El niño preguntó dónde estaba la llave, y nadie supo qué decirle.
Снег выпал ночью, и утром весь город говорил только шёпотом.
Η θάλασσα ήταν ήσυχη και τα πουλιά κοιμόντουσαν στα βράχια.
今天的天气很好,我们一起去河边散步,看看那些旧船。
朝の電車は混んでいたが、窓の外には静かな海が見えた。
오늘은 바람이 불어서 나무들이 하루 종일 노래를 불렀다.
القمر يضيء الطريق والمسافر يعرف أن البيت قريب.
הילדים שיחקו ליד הנחל עד שהשמש שקעה מאחורי ההר.
नदी के किनारे एक पुराना पेड़ है जिसकी छाया में सब बैठते हैं।
แม่น้ำไหลช้าในฤดูร้อน และเด็กๆ เล่นน้ำจนเย็น
def count_words(path):\n    with open(path) as lines:\n        return sum(len(line.split()) for line in lines)
for (int i = 0; i < n; ++i) {\n\ttotal += values[i] * weights[i];\n}
SELECT name, price FROM items WHERE price >= 19.99 ORDER BY name;
{"id": 1024, "tags": ["red", "blue"], "ok": true, "ratio": 0.125}
<p class="note">Bread &amp; butter</p>   <!-- end -->
""".strip().replace("\\n", "\n").replace("\\t", "\t").split("\n")

WORDS = sorted({w for s in SENTENCES for w in s.split()})

BLOCKS = [
    (0x21, 0x7E), (0xA1, 0xFF), (0x100, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x58A),
    (0x591, 0x5F4), (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0x9FE), (0xB80, 0xBFA), (0xE01, 0xE5B),
    (0x10A0, 0x10FF), (0x1200, 0x137C), (0x13A0, 0x13FD), (0x1780, 0x17F9), (0x1E00, 0x1EFF),
    (0x2000, 0x206F), (0x2070, 0x209C), (0x20A0, 0x20C0), (0x2150, 0x218B), (0x2190, 0x21FF),
    (0x2200, 0x22FF), (0x2460, 0x24FF), (0x2500, 0x257F), (0x2600, 0x27BF), (0x3000, 0x30FF),
    (0x3105, 0x312F), (0x4E00, 0x9FFF), (0xA500, 0xA62B), (0xAC00, 0xD7A3), (0xF900, 0xFAD9),
    (0xFB00, 0xFB06), (0xFE10, 0xFE6B), (0xFF01, 0xFFEE), (0x10000, 0x100FA), (0x10330, 0x1034A),
    (0x10D40, 0x10D85), (0x11F00, 0x11F59), (0x12000, 0x12399), (0x13000, 0x1345F),
    (0x1D400, 0x1D7FF), (0x1E4D0, 0x1E4F9), (0x1F300, 0x1F64F), (0x1F900, 0x1FAFF),
    (0x20000, 0x2A6DF), (0x31350, 0x323AF), (0xE0020, 0xE007F), (0x10FF00, 0x10FFFD),
]

SPACES = [" ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\xa0",
          "\u1680", "\u180e", "\u2003", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000",
          "\ufeff"]

NUMBERS = ["0", "7", "12", "345", "6789", "1234567", "3.14159", "1,000,000", "0x1F", "1e-9", "²",
           "x³", "½", "Ⅷ", "①", "٤٥٦", "१२३", "๗๘", "〇", "𝟘𝟙", "𒐀", "\U00010D40\U00010D41"]

EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "🧑🏿‍🚀", "❤️‍🔥", "1️⃣", "🫠", "☕️", "👨‍⚕️", "🇺", "\u200d",
         "\ufe0f", "🏴󠁧󠁢󠁳󠁣󠁴󠁿"]

CODE = ["if (a<=b&&c!=d){", "return x**2;", "}\n\n", "\tself.value = None  # note", "std::vector<int>",
        "https://a.example/b?c=d&e=%20f#g", "C:\\dir\\file.txt", "a_b__c", "camelCaseWord", "--flag=1",
        "'''doc'''", "@x.y()", "$PATH:/usr/bin", "(((())))", "!=====>", "\\n\\t", "`code`", "~~~", "...",
        "?!?!", "#!/bin/sh\n", "<|x|>", "<0x41>", "&nbsp;", "^_^", "[[1,2],[3,4]]"]

CONTRACTIONS = ["it's", "IT'S", "we'll", "WE'LL", "they're", "I've", "I'm", "he'd", "can't", "it’s", "'tis",
                "'s", "''s", "x'ſ", "'Sx", "l'été", "'Ve", "'rE", "o'clock", "d'", "'", "K'd", "\u212a'm"]

MARKS = ["e\u0301", "\u0301e", "a\u0323\u0307", "a\u0307\u0323", "\u0344", "Å", "A\u030a", "ﬁ", "ﬀ", "ǆ",
         "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0958", "\u0915\u093c", "ş̌", "q\u0307\u0323\u0301\u0327",
         "\u212b", "\u2126", "ͅα", "ᾳ", "が", "か\u3099", "\u0f43", "\ufb2a"]

# What the test tokenizers add to their vocabularies; see make_tokenizer_goldens.py.
SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>",
            "<|endoftext|>", "<s>", "</s>", "<unk>", "<mask>", "[R]", "wordy", "naïve\u0301", "<|im_end",
            "▁", "▁▁", "  wordy  ", " <mask> ", " [R] \n", "wordyx", "_wordy", "<s", "<|", "|>"]

INVALID = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80",
           b"\x80\x80", b"\xe2\x28\xa1", b"\xf8\x88\x80\x80\x80", b"\xc3\xc3\xa9", b"\xe0\x80\xaf"]


def _codepoints(rng):
    low, high = rng.choice(BLOCKS)
    return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8)))


def _run(rng):
    what = rng.choice([" ", "a", "0", "\n", "\t", "!", "=", "é", "字", "😀", "x y", " \n", "ab", "\xa0", "\u0301"])
    return what * rng.choice([2, 3, 5, 8, 17, 40, 130])


def _control(rng):
    return "".join(chr(rng.choice(list(range(0x20)) + list(range(0x7F, 0xA0)))) for _ in range(rng.randint(1, 5)))


def _part(rng):
    kind = rng.randrange(14)
    if kind < 3:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 6))).encode()
    makers = [lambda: _codepoints(rng), lambda: _run(rng), lambda: _control(rng)]
    lists = [SPACES, NUMBERS, EMOJI, CODE, CONTRACTIONS, MARKS, SPECIALS]
    if kind < 6:
        return makers[kind - 3]().encode()
    if kind < 13:
        return rng.choice(lists[kind - 6]).encode()
    if rng.random() < 0.3:
        return rng.choice(INVALID)
    return rng.choice(WORDS).encode()


def corpus(seed=20240611, count=2200):
    """Strings, the listed ones alone first; the random ones get longer towards the end."""
    rng = random.Random(seed)
    out = [b""]
    for group in (SPACES, NUMBERS, EMOJI, CODE, CONTRACTIONS, MARKS, SPECIALS, SENTENCES):
        out += [text.encode() for text in group]
    out += INVALID
    while len(out) < count:
        parts = rng.randint(1, 3 + 5 * len(out) // count)
        pieces = [_part(rng) for _ in range(parts)]
        if rng.random() < 0.02:
            pieces.append(bytes(rng.randrange(256) for _ in range(rng.randint(1, 24))))
        out.append(rng.choice([b"", b" "]).join(pieces))
    return out[:count]


def training_text(seed=7):
    rng = random.Random(seed)
    lines = list(SENTENCES) * 3
    for _ in range(1500):
        pieces = [_part(rng).decode("utf-8", errors="replace") for _ in range(rng.randint(1, 6))]
        lines.append(rng.choice(["", " "]).join(pieces))
    return lines


def escape(data):
    """One line of printable ASCII that does not end in a space."""
    line = "".join(chr(b) if 0x20 <= b < 0x7F and b != 0x5C else f"\\x{b:02x}" for b in data)
    return line[:-1] + "\\x20" if line.endswith(" ") else line
