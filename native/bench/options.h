// The command line of kvasir_bench.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

struct Options {
  std::vector<int> contexts = {2048, 8192, 32768};
  std::vector<std::string> codecs;  // "name" or "name:bits"; empty: all
  std::vector<int> threads;         // empty: 1 and all
  std::string backend = "auto";
  bool fast = false;
  std::string json;         // file to write; empty: none
  int64_t rotate_mb = 512;  // stored megabytes between two uses of the same layer
  double seconds = 0.3;     // least time spent on a figure
};

constexpr const char* kUsage =
    "usage: kvasir_bench [--contexts N,N] [--codecs NAME[:BITS],...] [--threads N,N] [--backend NAME]\n"
    "                    [--precision exact|fast] [--rotate MEGABYTES] [--seconds S] [--json FILE]\n"
    "\n"
    "Times decode attention (one query token, one layer, 32 query heads, 8 kv heads, head dim 128) for every codec "
    "and\n"
    "width, next to the 16-bit codec. Layers are used in turn so that the data comes from memory and not from a "
    "cache.\n";

inline std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

inline int positive(const std::string& text) {
  size_t used = 0;
  int value = 0;
  try {
    value = std::stoi(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used != text.size() || value <= 0) throw std::invalid_argument("'" + text + "' is not a positive number");
  return value;
}

inline std::vector<int> positives(const std::string& list) {
  std::vector<int> values;
  for (const std::string& part : split(list)) values.push_back(positive(part));
  return values;
}

inline Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      std::cout << kUsage;
      std::exit(0);
    }
    if (i + 1 == argc) throw std::invalid_argument(name + " needs a value");
    const std::string value = argv[++i];
    if (name == "--contexts") {
      options.contexts = positives(value);
    } else if (name == "--codecs") {
      options.codecs = split(value);
    } else if (name == "--threads") {
      options.threads = positives(value);
    } else if (name == "--backend") {
      options.backend = value;
    } else if (name == "--precision" && (value == "exact" || value == "fast")) {
      options.fast = value == "fast";
    } else if (name == "--rotate") {
      options.rotate_mb = positive(value);
    } else if (name == "--seconds") {
      options.seconds = std::atof(value.c_str());
    } else if (name == "--json") {
      options.json = value;
    } else {
      throw std::invalid_argument("unknown argument " + name + " " + value);
    }
  }
  return options;
}

}  // namespace bench
