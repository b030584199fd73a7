// Caches for the length of a test, and pairs of them, on this machine and on the device, that are fed the same.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "kvasir/kvasir.h"
#include "pages/page_case.h"

namespace twin_caches {

struct Deleter {
  template <class Held>
  void operator()(Held* held) const {
    Held::destroy(held);
  }
};
using CachePointer = std::unique_ptr<kvasir::Cache, Deleter>;
using ConfigPointer = std::unique_ptr<kvasir::CacheConfig, Deleter>;

inline std::vector<uint8_t> page_of(kvasir::Cache& cache, int64_t id, int64_t page, kvasir::Side side, int head) {
  std::vector<uint8_t> bytes(static_cast<size_t>(cache.read_page(id, 0, page, side, head, nullptr, 0)));
  cache.read_page(id, 0, page, side, head, bytes.data(), static_cast<int64_t>(bytes.size()));
  return bytes;
}

// Both caches, in step.
class Twins {
 public:
  Twins(CachePointer here, CachePointer there) : here_(std::move(here)), there_(std::move(there)) {
    CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~Twins() { cudaStreamDestroy(stream_); }
  Twins(const Twins&) = delete;
  Twins& operator=(const Twins&) = delete;

  int64_t new_sequence() {
    here_->new_sequence();
    return there_->new_sequence();
  }
  int64_t fork(int64_t id) {
    here_->fork(id);
    return there_->fork(id);
  }
  void truncate(int64_t id, int64_t length) {
    here_->truncate(id, length);
    there_->truncate(id, length);
  }

  // One attention of both in a graph of the device's, which is then run `runs` times, on memory that was filled before.
  class Graph {
   public:
    Graph(Twins& twins, std::vector<int64_t> ids, size_t elements)
        : twins_(twins), ids_(std::move(ids)), queries_(4 * elements), outputs_(4 * elements) {
      cudaGraph_t graph;
      CUDA(cudaStreamBeginCapture(twins.stream_, cudaStreamCaptureModeThreadLocal));
      twins.there_->attend_device(0, ids_.data(), static_cast<int>(ids_.size()), 1, queries_.data(), outputs_.data(),
                                  kvasir::ElementType::kFloat32, twins.stream_);
      CUDA(cudaStreamEndCapture(twins.stream_, &graph));
      CUDA(cudaGraphInstantiate(&runnable_, graph, 0));
      CUDA(cudaGraphDestroy(graph));
    }
    ~Graph() { cudaGraphExecDestroy(runnable_); }
    Graph(const Graph&) = delete;

    // What the graph gives, and in `here` what this machine's cache gives. The graph comes first: what a call before
    // it did is there when that returns.
    std::vector<float> run(const std::vector<float>& queries, std::vector<float>& here) {
      const size_t bytes = queries.size() * sizeof(float);
      CUDA(cudaMemcpyAsync(queries_.data(), queries.data(), bytes, cudaMemcpyHostToDevice, twins_.stream_));
      CUDA(cudaGraphLaunch(runnable_, twins_.stream_));
      std::vector<float> outputs(queries.size());
      CUDA(cudaMemcpyAsync(outputs.data(), outputs_.data(), bytes, cudaMemcpyDeviceToHost, twins_.stream_));
      CUDA(cudaStreamSynchronize(twins_.stream_));
      here.resize(queries.size());
      twins_.here_->attend(0, ids_.data(), static_cast<int>(ids_.size()), 1, queries.data(), here.data());
      return outputs;
    }

   private:
    Twins& twins_;
    const std::vector<int64_t> ids_;
    const page_case::Buffer queries_, outputs_;
    cudaGraphExec_t runnable_ = nullptr;
  };

 protected:
  // The rows are in the device's memory where its cache is told of them.
  void append_there(int64_t id, const std::vector<float>& keys, const std::vector<float>& values, int tokens) {
    const page_case::Buffer device_keys(page_case::bytes_of(keys)), device_values(page_case::bytes_of(values));
    there_->append_device(id, 0, device_keys.data(), device_values.data(), kvasir::ElementType::kFloat32, tokens,
                          stream_);
    CUDA(cudaStreamSynchronize(stream_));
  }

  // At least `least` pages, all equal byte for byte. heads: parts that a side of a page has.
  void compare_pages(int64_t id, int64_t least, int heads, const std::string& setting) const {
    const int64_t pages = there_->page_count(id, 0);
    CHECK(pages == here_->page_count(id, 0) && pages >= least, setting << ": " << pages);
    for (int64_t page = 0; page < pages; ++page) {
      for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
        for (int head = 0; head < heads; ++head) {
          const std::string difference =
              page_case::difference(page_of(*there_, id, page, side, head), page_of(*here_, id, page, side, head));
          CHECK(difference.empty(), setting << " page " << page << " side " << static_cast<int>(side) << " head "
                                            << head << ": " << difference);
        }
      }
    }
  }

  // All rows, of `width` elements each.
  void compare_rows(int64_t id, size_t width, const std::string& setting) const {
    const int64_t length = there_->length(id, 0);
    CHECK(length == here_->length(id, 0), setting << ": " << length);
    for (const kvasir::Side side : {kvasir::Side::kKeys, kvasir::Side::kValues}) {
      std::vector<float> here(static_cast<size_t>(length) * width), there(here);
      here_->read(id, 0, side, 0, length, here.data());
      there_->read(id, 0, side, 0, length, there.data());
      CHECK(here == there, setting << ": rows of side " << static_cast<int>(side) << " differ");
    }
  }

  CachePointer here_, there_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace twin_caches
