// The test program. `kvasir_tests --help` lists doctest's options; KVASIR_TEST_EFFORT scales the randomised tests.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "support/doctest.h"
