// Which devices a build has code for. CUDA is not needed to know.
#include "engine/cuda/device_code.h"

#include "support/doctest.h"

using kvasir::cuda::has_code_for;

TEST_CASE("device code: one architecture, and its PTX for what comes after it") {
  for (int capability : {90, 100, 120}) CHECK(has_code_for("90", capability));
  for (int capability : {75, 80, 86, 89}) CHECK_FALSE(has_code_for("90", capability));
  CHECK(has_code_for("80-virtual", 90));
  CHECK_FALSE(has_code_for("", 90));
}

TEST_CASE("device code: without PTX, the devices of one generation") {
  for (int capability : {80, 86, 89}) CHECK(has_code_for("80-real", capability));
  for (int capability : {75, 90, 100}) CHECK_FALSE(has_code_for("80-real", capability));
  CHECK_FALSE(has_code_for("86-real", 80));
  CHECK(has_code_for("90a", 90));
  CHECK_FALSE(has_code_for("90a", 100));
}

TEST_CASE("device code: several architectures") {
  for (int capability : {80, 86, 89, 90, 100, 121}) CHECK(has_code_for("80-real,90", capability));
  CHECK_FALSE(has_code_for("80-real,90", 75));
  CHECK(has_code_for("80-real,all-major", 75));
}
