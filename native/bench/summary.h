// All codecs on one page: how much faster than 16 bits, and how near to what the machine can do.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "report.h"

namespace bench {

// Rows are codecs, in the order of the results; columns contexts and threads. What was not measured is left out.
inline void print_summary(const std::vector<Result>& results, const std::vector<int>& contexts,
                          const std::vector<int>& thread_counts) {
  std::vector<std::pair<std::string, int>> codecs;
  for (const Result& r : results) {
    const auto codec = std::make_pair(r.codec, r.bits);
    if (std::find(codecs.begin(), codecs.end(), codec) == codecs.end()) codecs.push_back(codec);
  }
  std::printf(
      "\nspeed as a multiple of 16 bits, and the share of the ceiling: the time that a step's bytes (m) or "
      "instructions "
      "(i), whichever take\nlonger, need at the rates above, over the time it took\n\n%-14s",
      "tokens");
  for (const int context : contexts) {
    for (size_t i = 0; i < thread_counts.size(); ++i) std::printf(" | %12d", context);
  }
  std::printf("\n%-14s", "threads");
  for (size_t c = 0; c < contexts.size(); ++c) {
    for (const int threads : thread_counts) std::printf(" | %12d", threads);
  }
  std::printf("\n");
  for (const auto& [name, bits] : codecs) {
    std::printf("%-14s", (name + " " + std::to_string(bits)).c_str());
    for (const int context : contexts) {
      for (const int threads : thread_counts) {
        const Result* found = nullptr;
        for (const Result& r : results) {
          if (r.codec == name && r.bits == bits && r.context == context && r.threads == threads) found = &r;
        }
        if (!found) {
          std::printf(" | %12s", "");
        } else if (found->ceiling_us == 0) {
          std::printf(" | %5.2f       ", found->ratio16);
        } else {
          std::printf(" | %5.2f %3.0f %% %c", found->ratio16, 100 * found->ceiling_us / found->us,
                      found->by_memory ? 'm' : 'i');
        }
      }
    }
    std::printf("\n");
  }
}

}  // namespace bench
