// Sequences as bytes, for tests: saved whole, restored whole.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kvasir/kvasir.h"

namespace support {

struct SavedDeleter {
  void operator()(kvasir::Saving* saving) const { kvasir::Saving::destroy(saving); }
  void operator()(kvasir::Restoring* restoring) const { kvasir::Restoring::destroy(restoring); }
};
using SavingPointer = std::unique_ptr<kvasir::Saving, SavedDeleter>;
using RestoringPointer = std::unique_ptr<kvasir::Restoring, SavedDeleter>;
using Bytes = std::vector<uint8_t>;

struct Saved {
  std::vector<Bytes> blocks;
  Bytes state;
  int64_t whole_blocks = 0;
};

inline Bytes block_of(kvasir::Saving& saving, int64_t block, const uint8_t* chain = nullptr) {
  Bytes bytes(static_cast<size_t>(saving.write_block(block, chain, nullptr, 0)));
  saving.write_block(block, chain, bytes.data(), static_cast<int64_t>(bytes.size()));
  return bytes;
}

inline Saved save(kvasir::Cache& cache, int64_t sequence) {
  const SavingPointer saving(kvasir::Saving::create(cache, sequence));
  Saved saved;
  for (int64_t i = 0; i < saving->blocks(); ++i) saved.blocks.push_back(block_of(*saving, i));
  saved.state.resize(static_cast<size_t>(saving->write_state(nullptr, 0)));
  saving->write_state(saved.state.data(), static_cast<int64_t>(saved.state.size()));
  saved.whole_blocks = saving->whole_blocks();
  return saved;
}

inline void add(kvasir::Restoring& restoring, const Bytes& block) {
  restoring.add_block(block.data(), static_cast<int64_t>(block.size()), nullptr);
}

inline int64_t restore(kvasir::Cache& cache, const Saved& saved) {
  const RestoringPointer restoring(kvasir::Restoring::create(cache));
  for (const Bytes& block : saved.blocks) add(*restoring, block);
  restoring->set_state(saved.state.data(), static_cast<int64_t>(saved.state.size()));
  return restoring->finish();
}

}  // namespace support
