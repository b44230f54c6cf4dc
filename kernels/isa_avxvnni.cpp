// The kernels for avxvnni.
#define OCTAVO_ISA_AVXVNNI
#define OCTAVO_ISA avxvnni
#include "isa.inc"
