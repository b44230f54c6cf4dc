// The kernels for avx2.
#define OCTAVO_ISA_AVX2
#define OCTAVO_ISA avx2
#include "isa.inc"
