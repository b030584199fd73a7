// What this machine can do at most, measured: bytes read from memory, and the instructions that attention is made of.
//
// A step cannot take less time than reading its stored bytes at the bandwidth of memory, nor less than executing the
// products and additions that its codec is made of at the rate of loops that do nothing else. The longer of the two is
// the ceiling; the share of it that a kernel reaches says how much there is left to gain, and which of the two bounds
// it says where. Unpacking, scales, softmax and loops are not in the ceiling, so that nothing reaches all of it.
//
// Rates are those of as many threads as the step had, all at it at once: hyperthreads share ports, cores share memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "data.h"
#include "instruction_rates.h"

namespace bench {

// What a step is made of.
struct Work {
  double bytes = 0;            // stored, read once
  double byte_products = 0;    // of two bytes, added to 32 bits
  double float_products = 0;   // float32, fused with an addition
  double short_additions = 0;  // of 16-bit numbers, one from the first cache
};

// Seconds; `by_memory` where bytes take longer than instructions.
struct Ceiling {
  double seconds = 0;
  bool by_memory = false;
};

class Machine {
 public:
  // backend: the level whose instructions count. megabytes: read to find the bandwidth, more than caches hold.
  Machine(const std::string& backend, int64_t megabytes, int threads) : threads_(threads) {
    const InstructionLoops loops = instruction_loops(backend);
    const size_t words = static_cast<size_t>(megabytes) * 1000000 / sizeof(uint64_t) / threads;
    std::vector<std::unique_ptr<uint64_t[]>> blocks(threads);
    at_once([&](int t) {  // written by those who read it, so that it is near them
      blocks[t].reset(new uint64_t[words]);
      for (size_t i = 0; i < words; ++i) blocks[t][i] = i * 0x9E3779B97F4A7C15u;
    });
    bytes_ = best([&](int t) {
      uint64_t sums[8] = {};
      for (size_t i = 0; i + 8 <= words; i += 8) {
        for (int k = 0; k < 8; ++k) sums[k] += blocks[t][i + k];
      }
      for (const uint64_t sum : sums) sink_ += sum;
      return static_cast<double>(words) * sizeof(uint64_t);
    });
    blocks.clear();
    if (!loops.byte_products) return;
    byte_products_ = best([&](int) { return loops.byte_products(); });
    float_products_ = best([&](int) { return loops.float_products(); });
    short_additions_ = best([&](int) { return loops.short_additions(); });
  }

  // 0 seconds where the level has no rates.
  Ceiling ceiling(const Work& work) const {
    if (byte_products_ == 0) return {};
    const double memory = work.bytes / bytes_;
    const double instructions = work.byte_products / byte_products_ + work.float_products / float_products_ +
                                work.short_additions / short_additions_;
    return {std::max(memory, instructions), memory > instructions};
  }

  void print() const {
    std::printf("%7d | %10.1f | %9.0f | %9.0f | %9.0f\n", threads_, bytes_ / 1e9, byte_products_ / 1e9,
                float_products_ / 1e9, short_additions_ / 1e9);
  }
  static void print_header() {
    std::printf("%7s | %10s | %9s | %9s | %9s   (10^9 per second, all threads together)\n", "threads", "bytes read",
                "byte mul", "float mul", "short add");
  }

 private:
  template <class Part>
  void at_once(Part part) {
    std::vector<std::thread> threads;
    for (int t = 1; t < threads_; ++t) threads.emplace_back([&part, t] { part(t); });
    part(0);
    for (std::thread& thread : threads) thread.join();
  }

  // Units per second of all threads together, the best of some rounds.
  template <class Part>
  double best(Part part) {
    constexpr int kRounds = 3;
    double rate = 0;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<double> units(threads_);
      const double start = seconds_now();
      at_once([&](int t) { units[t] = part(t); });
      double total = 0;
      for (const double each : units) total += each;
      rate = std::max(rate, total / (seconds_now() - start));
    }
    return rate;
  }

  const int threads_;
  std::atomic<uint64_t> sink_{0};
  double bytes_ = 0, byte_products_ = 0, float_products_ = 0, short_additions_ = 0;
};

}  // namespace bench
