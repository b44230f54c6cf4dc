// The kernels for avx512.
#define OCTAVO_ISA_AVX512
#define OCTAVO_ISA avx512
#include "isa.inc"
