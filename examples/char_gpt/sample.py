"""Write text with trained parameters, one character at a time. Try:

    rlx train examples/char_gpt/job.toml --save gpt.safetensors
    python examples/char_gpt/sample.py gpt.safetensors --start "Return the " --seed 1

The same parameters, seed and start give the same text.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from model import ALPHABET, LENGTH, sampling
from safetensors.numpy import load_file

from rlx.backends import Compiled, Session


def main() -> None:
    """Print the start and what follows it."""
    options = arguments()
    network = Session("cpu").compile(sampling())
    for name, value in load_file(options.parameters).items():
        network.set_param(name, value)
    tokens = [ALPHABET.index(one) for one in options.start]
    for chance in chances(options.seed, options.characters):
        tokens.append(choice(following(network, tokens) / options.temperature, chance))
    print("".join(ALPHABET[token] for token in tokens))


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(description="Write text with a trained char_gpt.")
    parser.add_argument("parameters", help="what `rlx train --save` wrote")
    parser.add_argument("--start", type=known, default="\n", help="the text to go on from")
    parser.add_argument("--characters", type=int, default=400, help="how many (default 400)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another text")
    parser.add_argument("--temperature", type=float, default=0.7, help="lower is less daring")
    return parser.parse_args()


def known(text: str) -> str:
    """`text`, if the model knows its characters and there are any."""
    if not text or not set(text) <= set(ALPHABET):
        raise argparse.ArgumentTypeError("a start is printable ASCII, and not empty")
    return text


def following(network: Compiled, tokens: list[int]) -> np.ndarray:
    """The scores of what follows the last LENGTH of `tokens`, by a model that looks at no later
    place: what fills up a short row has no effect."""
    seen = tokens[-LENGTH:]
    row = np.zeros((1, LENGTH), np.uint8)
    row[0, : len(seen)] = seen
    (scores,) = network.run({"tokens": row})
    return scores[0, len(seen) - 1]


def choice(scores: np.ndarray, chance: float) -> int:
    """The character at which the sum of probabilities passes `chance`."""
    weights = np.exp(scores.astype(np.float64) - scores.max()).cumsum()
    return int(np.searchsorted(weights, chance * weights[-1], side="right"))


def chances(seed: int, count: int) -> Iterator[float]:
    """`count` numbers in [0, 1), from a stream that is the same in all releases of numpy."""
    raw = np.random.Philox(key=np.array([seed % 2**64, 0], np.uint64)).random_raw(count)
    return (int(word >> np.uint64(11)) * 2.0**-53 for word in np.asarray(raw, np.uint64))


if __name__ == "__main__":
    main()
