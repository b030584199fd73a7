// The rows of an append, as they were taken from the caller.
//
// A caller may write to its memory while a call reads it. So each element is read once, into a copy; what is checked is
// the copy, and everything after that works on the copy alone. It is float16, because that is what rows are rounded to
// before anything else happens to them.
#pragma once

#include <cstdint>

#include "base/aligned.h"
#include "engine/engine.h"

namespace kvasir {

class TakenRows {
 public:
  // `rows`: in memory of this machine. Keys are divided by the layer's scaling where it has one. Throws kNotFinite with
  // the place of the first element that cannot be stored, or kOutOfMemory.
  TakenRows(const LayerPlan& plan, const TokenRows& rows);
  ~TakenRows();
  TakenRows(const TakenRows&) = delete;

  // float16: [tokens][kv_heads][head_dim].
  const uint16_t* side(Side side) const { return halves_.get() + (side == Side::kValues ? elements_ : 0); }
  // Of one side.
  size_t elements() const { return elements_; }

 private:
  void take(const LayerPlan& plan, Side side, const RowsView& rows, int64_t tokens);

  // Memory of an append that has ended waits for the next one, which mostly is that of the next layer: fresh memory
  // costs more than what is done in it. One for all threads, and none beyond kMostSpare bytes.
  struct Spare;
  static AlignedArray<uint16_t> reuse(size_t halves, size_t* capacity);

  const size_t elements_;
  size_t capacity_ = 0;  // halves that the memory has
  AlignedArray<uint16_t> halves_;
};

}  // namespace kvasir
