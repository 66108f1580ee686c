// The arithmetic of one instruction set. CMake compiles this file once for each: INGLE_ISA names it.

#include "attention.h"
#include "choose.h"
#include "kernels.h"
#include "product.h"
#include "rows.h"

#define INGLE_JOIN(a, b) a##b
#define INGLE_TABLE(isa) INGLE_JOIN(kernels_, isa)
#define INGLE_QUOTE(x) #x
#define INGLE_NAME(isa) INGLE_QUOTE(isa)

namespace ingle {

const Kernels INGLE_TABLE(INGLE_ISA) = {
    .name = INGLE_NAME(INGLE_ISA),
#if defined(__AVX512BF16__)
    .reads_halves = true,
#else
    .reads_halves = false,
#endif
    .prepare = INGLE_ISA::prepare,
    .product = INGLE_ISA::product,
    .rms_norm = INGLE_ISA::rms_norm,
    .rotate = INGLE_ISA::rotate,
    .gate = INGLE_ISA::gate,
    .add = INGLE_ISA::add,
    .softcap = INGLE_ISA::softcap,
    .to_bf16 = INGLE_ISA::to_bf16,
    .attention = INGLE_ISA::attention,
    .scaled = INGLE_ISA::scaled,
    .find = INGLE_ISA::find,
    .exp_sum = INGLE_ISA::exp_sum,
    .collect = INGLE_ISA::collect,
    .noisy_best = INGLE_ISA::noisy_best,
};

}  // namespace ingle
