// The kernels for neon.
#define OCTAVO_ISA_NEON
#define OCTAVO_ISA neon
#include "isa.inc"
