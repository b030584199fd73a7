// Families: how the pages of a layer lie in device memory, and which kernels write and read them.
//
//   fragments   pages of min-max codes or float16 in the order of tensor-core fragments
//   pattern     the same, with labels and a table of vectors
//   tiered      key channels of several widths beside uniform values, re-ordered for attention
//   commvq      parts of docs/format.md, with fused attention over both sides' codebooks
//   canonical   parts of docs/format.md; any two codecs, attention on unpacked rows
//
// A codec has one row here (DeviceCodec): the family of layers whose keys are its own, if it has one, and what it does
// as one side among canonical pages. codecs.def makes the table; nobody else knows codecs by name.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/cuda/device_layer.h"
#include "engine/cuda/fused_group.h"
#include "engine/engine.h"
#include "kernels/cuda/attend/types.h"
#include "kernels/cuda/layout/input_rows.h"
#include "kernels/cuda/pages/repack.h"
#include "kernels/cuda/rows/unpack.h"

namespace kvasir::cuda {

class CudaLayerState;

// Where queries come from and outputs go to, on the device: [rows][query_heads][query_dim], and output_dim.
struct QueryMemory {
  const void* queries;
  void* outputs;
  ElementType type;
  RowEnds ends = {};

  // From a row on.
  QueryMemory from(const AttentionLayer& layer, int64_t row) const;
};

// Rows of an append on the device, the oldest of which are to be sealed: page p takes rows 128 p .. 128 p + 127. They
// are in the staging, or in families that seal appended rows as they are (PageFamily::seals_input) the first whole
// pages of them: the row after those is the input's token `first_token`, and so on.
struct StagedPages {
  Staging staging;
  int64_t count;
  DeviceScratch laid_out;  // what lay_out found, for seal
  const InputRows* input;
  int64_t first_token;

  bool staged(int64_t page) const { return (page + 1) * kPageTokens <= staging.rows; }
};

// The memory that they go to.
struct NewPages {
  const std::vector<NewPage>& pages;
  const SideTable (&tables)[2];
  const CudaLayerState& state;
  // One part as kernels of this machine write it, into its memory. From many threads.
  const std::function<void(int64_t page, Side side, int kv_head, uint8_t* out)>& encode_here;

  std::vector<uint8_t*> addresses() const;
};

// Consecutive pages of a sequence, all of one shape.
struct PageRun {
  const SequenceView& view;
  int64_t begin, end;  // in view.pages

  int64_t count() const { return end - begin; }
  int64_t tokens() const { return count() * kPageTokens; }
  const PageShape& shape() const { return *view.pages[begin]->shape; }
  std::vector<const uint8_t*> addresses() const;
  // Where the side begins, in pages whose parts vary in size; the page itself in the others.
  std::vector<const uint8_t*> addresses(Side side) const;
};

class PageFamily {
 public:
  virtual ~PageFamily() = default;

  // Sealing: see the verbs of Append ------------------------------------------------------------------------------
  virtual bool lay_out(StagedPages&, const uint8_t*, PartHeads&) const { return false; }
  virtual bool grow(const StagedPages&, Side, SealInput&, SideTable&, CudaLayerState&) const { return false; }
  virtual void seal(const StagedPages& staged, const NewPages& pages) const = 0;
  virtual bool seals_input() const { return false; }

  // Pages ---------------------------------------------------------------------------------------------------------
  // A part in the layout of docs/format.md, in memory of this machine. Valid until this thread asks again. Waits.
  virtual const uint8_t* part(const PageView& page, Side side, int kv_head) const = 0;
  // What Codec::count_widths looks at.
  virtual const uint8_t* part_widths(const PageView& page, Side side, int kv_head) const {
    return part(page, side, kv_head) + page.format(side).head_offset(kv_head);
  }
  // Saving and restoring. How kernels bring pages into the layout of docs/format.md and back; nothing where they lie
  // so, or where this machine has to do it.
  virtual std::optional<RepackShape> repack(const PageShape&) const { return std::nullopt; }
  // Whether this machine did it. Waits.
  virtual bool read_page(const PageView&, uint8_t*) const { return false; }
  // What Engine::stored_bytes and write_page do. `from` has been read.
  virtual int64_t stored_bytes(const PageView& page, const uint8_t*) const {
    return static_cast<int64_t>(page.bytes());
  }
  virtual void write_page(const NewPage& page, const uint8_t* from) const = 0;
  // In place; false where this machine has to do it. All pages have one shape, and get one.
  virtual bool shrink(const std::vector<ShrinkingPage>&) const { return false; }

  // Rows of pages, for attention on many query tokens -------------------------------------------------------------
  // Whether a side has float16 rows (read_half_rows), else float32 ones (read_rows).
  virtual bool has_half_rows(Side) const { return false; }
  virtual void read_half_rows(const PageRun&, Side, const HalfRows&) const {}
  // out: [kv_heads][tokens of the run][head_dim] by side; null: that side is left out.
  virtual void read_rows(const PageRun& run, float* const (&out)[2]) const = 0;

  // Attention by fused kernels, one call at a time ----------------------------------------------------------------
  // Whether they take the queries of one sequence; then `attend` takes any number of those, up to kMostFusedRows rows
  // together. Where they have masks, it attends to what came before them alone.
  virtual bool attends(const SequenceView&, const QueryRun&) const { return false; }
  // Whether they do so where scores are capped.
  virtual bool caps() const { return false; }
  // `memory` begins with the first row of the request.
  virtual void attend(const AttentionRequest&, const QueryMemory&) {}
  // Into a graph, on the caller's stream: with memory of its own, because nobody knows when the graph will run.
  virtual bool captures(const AttentionRequest&) const { return false; }
  virtual void capture(const AttentionRequest&, const QueryMemory&, cudaStream_t) {}
};

// One side of pages of docs/format.md: what a codec does among others.
class CanonicalSide {
 public:
  virtual ~CanonicalSide() = default;
  virtual bool lay_out(StagedPages&, const uint8_t*, PartHeads&) const { return false; }
  // Whether this machine seals: pages of both sides then go up first, as encode_here made them.
  virtual bool sealed_here() const { return false; }
  virtual void seal(const StagedPages&, const NewPages&) const {}
  virtual bool shrinks() const { return false; }
  virtual bool has_half_rows() const { return false; }
  virtual void read_half_rows(const PageRun&, const HalfRows&) const {}
  virtual void read_rows(const PageRun& run, float* out) const = 0;
};

struct DeviceCodec {
  // Null, or what it makes is null: the layer's pages are canonical.
  std::unique_ptr<PageFamily> (*family)(const DeviceLayer& layer);
  std::unique_ptr<CanonicalSide> (*side)(const DeviceLayer& layer, Side side);
};

const DeviceCodec& device_codec(const Codec& codec);
std::unique_ptr<PageFamily> make_family(const DeviceLayer& layer);

}  // namespace kvasir::cuda
