// Forks, cuts, appends and releases in random order against plain arrays; with and without budgets.
#include "support/doctest.h"
#include "support/effort.h"
#include "support/model_walk.h"

namespace {

// Two layers that differ in everything.
support::CacheChoice two_layers() {
  support::CacheChoice choice;
  support::LayerChoice first, second;
  first.keys = {"uniform", 2, {}};
  first.values = {"uniform", 4, {}};
  second.query_heads = 3;
  second.kv_heads = 1;
  second.head_dim = 48;
  second.keys = {"uniform", 3, {{"axis", 1.0}}};
  choice.layers = {first, second};
  return choice;
}

// Returns how often the budget refused.
int walk(const support::CacheChoice& choice, uint64_t seed, int steps) {
  support::ModelWalk walk(choice, seed);
  for (int i = 0; i < steps; ++i) walk.step();
  walk.compare_all();
  walk.release_all();
  return walk.refusals();
}

}  // namespace

TEST_CASE("sequence model: random walks without a budget") {
  for (int round = 0; round < support::repeat(6); ++round) {
    support::CacheChoice choice = two_layers();
    choice.sinks = round % 3 == 1 ? 5 : round % 3 == 2 ? 130 : 0;
    choice.window = round % 2 == 1 ? 40 : 0;
    CHECK(walk(choice, support::seed() + round, 150) == 0);
  }
}

TEST_CASE("sequence model: random walks against a cache budget") {
  for (int round = 0; round < support::repeat(4); ++round) {
    support::CacheChoice choice = two_layers();
    choice.sinks = round % 2 == 1 ? 3 : 0;
    choice.budget = 400'000;
    CHECK_MESSAGE(walk(choice, support::seed() + 100 + round, 150) > 0, "the budget was never reached");
  }
}

TEST_CASE("sequence model: random walks against layer budgets") {
  for (int round = 0; round < support::repeat(4); ++round) {
    support::CacheChoice choice = two_layers();
    choice.layers[0].budget = 150'000;
    choice.layers[1].budget = 200'000;
    CHECK_MESSAGE(walk(choice, support::seed() + 200 + round, 150) > 0, "the budgets were never reached");
  }
}
