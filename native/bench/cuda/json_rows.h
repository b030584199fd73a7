// The rows that ci/bench-gpu joins: a list of {"codec", "bits", "context", "batch", "us", "gbps"} in a file.
#pragma once

#include <cstdio>
#include <string>

namespace bench {

class JsonRows {
 public:
  // Writes nothing where there is no path.
  explicit JsonRows(const std::string& path) : file_(path.empty() ? nullptr : std::fopen(path.c_str(), "w")) {
    if (file_ != nullptr) std::fprintf(file_, "[");
  }
  ~JsonRows() {
    if (file_ == nullptr) return;
    std::fprintf(file_, "\n]\n");
    std::fclose(file_);
  }
  JsonRows(const JsonRows&) = delete;
  JsonRows& operator=(const JsonRows&) = delete;

  void add(const char* codec, double bits, int context, int batch, double us, double gbps) {
    if (file_ == nullptr) return;
    std::fprintf(file_,
                 "%s {\"codec\": \"%s\", \"bits\": %g, \"context\": %d, \"batch\": %d, \"us\": %.3f, \"gbps\": %.1f}",
                 comma_, codec, bits, context, batch, us, gbps);
    comma_ = ",\n";
  }

 private:
  FILE* file_;
  const char* comma_ = "\n";
};

}  // namespace bench
