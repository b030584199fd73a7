// The command line of kvasir_bench.
#pragma once

#include <string>
#include <vector>

#include "arguments.h"

namespace bench {

struct Options {
  std::vector<int> contexts = {2048, 8192, 32768};
  std::vector<std::string> codecs;  // "name" or "name:bits"; empty: all
  std::vector<int> threads;         // empty: 1 and all
  std::string backend = "auto";
  bool fast = false;
  std::string json;      // file to write; empty: none
  int rotate_mb = 512;   // stored megabytes between two uses of the same layer
  double seconds = 0.3;  // least time spent on a figure
};

constexpr const char* kUsage =
    "usage: kvasir_bench [--contexts N,N] [--codecs NAME[:BITS],...] [--threads N,N] [--backend NAME]\n"
    "                    [--precision exact|fast] [--rotate MEGABYTES] [--seconds S] [--json FILE]\n"
    "\n"
    "Times decode attention (one query token, one layer, 32 query heads, 8 kv heads, head dim 128) for every codec "
    "and\n"
    "width, next to the 16-bit codec. Layers are used in turn so that the data comes from memory and not from a "
    "cache.\n";

inline Options parse(int argc, char** argv) {
  Options options;
  parse(argc, argv, kUsage,
        {{"--contexts", &options.contexts},
         {"--codecs", &options.codecs},
         {"--threads", &options.threads},
         {"--backend", &options.backend},
         {"--precision", &options.fast, "exact", "fast"},
         {"--rotate", &options.rotate_mb},
         {"--seconds", &options.seconds},
         {"--json", &options.json}});
  return options;
}

}  // namespace bench
