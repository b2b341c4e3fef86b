"""What warpgroups do, in machine code."""

import re


def products(kernel):
    """What the warps that multiply do, a letter each: Arrive, Hgmma, the last one of a Group, and waits for all but that many."""
    letters = []
    for line in kernel.sass.splitlines():
        found = re.search(r"WARPGROUP\.ARRIVE|HGMMA.*|WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d)", line)
        if found:
            kind = "A" if "ARRIVE" in found[0] else "G" if "gsb0 " in found[0] else "H"
            letters.append(found[1] or kind)
    return "".join(letters)
