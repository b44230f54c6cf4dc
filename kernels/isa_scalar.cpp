// The kernels for scalar.
#define OCTAVO_ISA_SCALAR
#define OCTAVO_ISA scalar
#include "isa.inc"
