// What kvasir_bench found: one line for people, one JSON object for programs.
#pragma once

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

struct Result {
  std::string codec;
  int bits;
  int context;
  int threads;
  double us;                // median
  double spread;            // half the distance between the quartiles, over the median
  double gbps;              // stored bytes per second, in 10^9
  double ratio16;           // time of the 16-bit codec / this time
  double nmse;              // of the timed output, against double precision over the decoded rows
  double max_error;         // of one output element, over the root mean square of the output
  double bits_per_element;  // parameters included
  double append_gbps;       // float32 input per second, in 10^9, sealed and stored, at all threads
  int samples;
  double ceiling_us = 0;  // ceiling.h; 0 where there is none
  bool by_memory = false;
};

// The value below which `part` of the samples lie. Sorts them.
inline double quantile(std::vector<double>& samples, double part) {
  std::sort(samples.begin(), samples.end());
  return samples[static_cast<size_t>(part * static_cast<double>(samples.size() - 1) + 0.5)];
}

inline void print_header() {
  std::printf("%-10s %4s %8s %7s | %10s %6s | %7s %9s | %9s %9s | %8s\n", "codec", "bits", "context", "threads",
              "us/step", "+-", "GB/s", "x 16 bit", "NMSE", "max error", "bits/el.");
}

inline void print_line(const Result& r) {
  std::printf("%-10s %4d %8d %7d | %10.1f %5.1f%% | %7.2f %9.2f | %9.1e %9.1e | %8.2f\n", r.codec.c_str(), r.bits,
              r.context, r.threads, r.us, 100.0 * r.spread, r.gbps, r.ratio16, r.nmse, r.max_error, r.bits_per_element);
  std::fflush(stdout);
}

inline void write_json(const std::string& path, const std::vector<Result>& results, const std::string& backend,
                       const std::string& precision) {
  std::ofstream out(path);
  out << "[";
  for (size_t i = 0; i < results.size(); ++i) {
    const Result& r = results[i];
    char line[512];
    std::snprintf(
        line, sizeof line,
        "%s\n {\"codec\": \"%s\", \"bits\": %d, \"context\": %d, \"threads\": %d, \"us\": %.3f, \"gbps\": %.4f, "
        "\"ratio16\": %.4f, \"nmse\": %.4e, \"max_error\": %.4e, \"spread\": %.4f, \"samples\": %d, "
        "\"bits_per_element\": %.4f, \"append_gbps\": %.4f, \"ceiling_us\": %.3f, \"bound\": \"%s\", \"backend\": "
        "\"%s\", \"precision\": \"%s\"}",
        i == 0 ? "" : ",", r.codec.c_str(), r.bits, r.context, r.threads, r.us, r.gbps, r.ratio16, r.nmse, r.max_error,
        r.spread, r.samples, r.bits_per_element, r.append_gbps, r.ceiling_us, r.by_memory ? "memory" : "instructions",
        backend.c_str(), precision.c_str());
    out << line;
  }
  out << "\n]\n";
  if (!out) throw std::runtime_error("cannot write " + path);
}

}  // namespace bench
