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

TEST_CASE("device code: Orin, which runs no code of others") {
  for (const char* others : {"80-real", "86-real", "80-real,89-real", "80-real,90"})
    CHECK_FALSE(has_code_for(others, 87));
  for (const char* own : {"87", "87-real", "80-real,87-real"}) CHECK(has_code_for(own, 87));
  for (const char* ptx : {"80", "80-virtual", "86", "75-real,80-virtual"}) CHECK(has_code_for(ptx, 87));
  CHECK_FALSE(has_code_for("87-real", 89));
  CHECK(has_code_for("87", 89));
}

TEST_CASE("device code: several architectures") {
  for (int capability : {80, 86, 89, 90, 100, 121}) CHECK(has_code_for("80-real,90", capability));
  CHECK_FALSE(has_code_for("80-real,90", 75));
  CHECK(has_code_for("80-real,all-major", 75));
}
