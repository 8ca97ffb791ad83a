"""What a type checker makes of kgen's public names; run by mypy alone."""

from typing import assert_type

import kgen
from kgen import KernelOperator, MmaGemm, SearchSpace, choice, rule


class Mine(MmaGemm):
    BM = choice(96, 192)

    @rule
    def square(self, problem: kgen.Problem, target: object) -> bool:
        """tiles are square here"""
        return bool(self.BM == self.BN)


assert_type(MmaGemm.where(BM=(64, 128), stages=3), SearchSpace)
assert_type(kgen.hgemm.using(BM=128, stages=(3, 4)), KernelOperator)
assert_type(kgen.hgemm.using(Mine), KernelOperator)
assert_type(kgen.gelu, KernelOperator)


def product(x: object, w: object) -> object:
    return x


assert_type(kgen.operator(schedules=[Mine, kgen.WgmmaGemm])(product), KernelOperator)
assert_type(kgen.operator(product), KernelOperator)
