"""The order of a priority graph in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from marginlens.data.vocabulary import quoted

# Components above others that are listed, components listed below each of them, and tokens listed of a
# component.
MAX_ABOVE = 12
MAX_BELOW = 12
MAX_MEMBERS = 40


def describe_order(last: str, order: Mapping[str, Any]) -> Iterator[str]:
    """Describe which components sequences rank above others after one last token, and by how many sequences.

    Args:
        last: the name of the last token.

        order: `equal`, the names of the tokens of each component; `compared`, the numbers of pairs of components that are
            ranked directly, through chains, and not at all; `above`, the ranked pairs of components, each with its number of
            sequences.
    """
    equal, compared = order["equal"], order["compared"]
    total = len(equal) * (len(equal) - 1) // 2
    if not total:
        n_tokens = sum(map(len, equal))
        yield f"After {quoted(last)} {f'all {n_tokens:,} tokens are equal' if n_tokens > 1 else 'there is one token'}."
        return
    rest = f", {compared['not']:,} not at all" if compared["not"] else ""
    chains = f", {compared['through_chains']:,} through chains" if compared["through_chains"] else ""
    if compared["not"] is None:
        chains = "; chains are not followed among so many"
    yield (
        f"After {quoted(last)}, {compared['directly']:,} of {total:,} pairs of components are ranked by sequences{chains}{rest}. "
        "Above > below (sequences that say so):"
    )
    names = [quoted(members[0]) for members in equal]
    several = [part for part, members in enumerate(equal) if len(members) > 1]
    for number, part in enumerate(several, 1):
        members, names[part] = equal[part], f"[{number}]"
        more = f" … {len(members):,} in all" if len(members) > MAX_MEMBERS else ""
        yield f"  [{number}] = {len(members):,} equal tokens: {' '.join(map(quoted, members[:MAX_MEMBERS]))}{more}"
    below: dict[int, list[tuple[int, int]]] = {}
    for pair in order["above"]:
        below.setdefault(pair["component"], []).append((pair["sequences"], pair["over"]))
    ranked = sorted(below.items(), key=lambda item: (-sum(times for times, _ in item[1]), item[0]))
    for upper, lower in ranked[:MAX_ABOVE]:
        lower.sort(key=lambda pair: (-pair[0], pair[1]))
        listed = "  ".join(f"{names[part]} ({times:,})" for times, part in lower[:MAX_BELOW])
        more = f"  and {len(lower) - MAX_BELOW:,} more" if len(lower) > MAX_BELOW else ""
        yield f"  {names[upper]} > {listed}{more}"
    if len(ranked) > MAX_ABOVE:
        yield f"  and {len(ranked) - MAX_ABOVE:,} more components above others."
