// A device of warps that are run one after the other: blocks in order, clusters together, warps in turn.
//
// Each lane has a place in the code of its own. Of lanes that are at different places those with the lowest go on, so
// that they meet others where code comes together; what a whole warp does at once waits for all of its lanes.
// Asynchronous copies are done when they are asked for. What kernels read and write is checked against what there is.
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "ptx.h"

namespace emulator {

struct Size {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

// Memory that kernels may use: what was allocated, and the variables of modules.
class Memory {
 public:
  void* allocate(size_t bytes);
  // Whether it begins something that was allocated.
  bool release(void* memory);
  size_t taken() const { return taken_; }
  struct Range {
    const uint8_t* begin = nullptr;
    const uint8_t* end = nullptr;
    bool has(const uint8_t* at, size_t bytes) const { return at >= begin && at + bytes <= end; }
  };
  // What holds these bytes; empty where nothing does.
  Range find(const uint8_t* at, size_t bytes) const;

 private:
  std::map<const uint8_t*, size_t> ranges_;
  size_t taken_ = 0;
};

struct Launch {
  const Function* function;
  Module* module;
  Size grid, block, cluster;
  uint32_t shared_bytes = 0;
  std::vector<uint8_t> parameters;
};

// Runs all of it. Throws Fault.
void run(const Launch& launch, const Memory& memory);

class Block;

class Warp {
 public:
  enum class State : uint8_t { kReady, kAtBarrier, kAtClusterBarrier, kDone };

  // registers: of Function::register_bytes, of any content.
  Warp(Block& block, int number, uint32_t lanes, uint8_t* registers);

  // Goes on for a while, or until it waits. False where it is left looking whether others have done something.
  bool go_on();

  // Of operands.
  uint8_t* at(const Operand& operand) {
    if (operand.bank == Operand::Bank::kRegisters) return registers_ + operand.at;
    return const_cast<uint8_t*>(constants_) + operand.at;
  }
  uint32_t predicate(const Operand& operand) const {
    const uint32_t bits = predicates_[operand.at];
    return operand.negated ? ~bits : bits;
  }
  void set_predicate(const Operand& operand, uint32_t lanes, uint32_t bits) {
    if (operand.bank == Operand::Bank::kNone) return;  // "_"
    uint32_t& all = predicates_[operand.at];
    all = (all & ~lanes) | (bits & lanes);
  }
  uint64_t special(Special which, int lane) const;
  uint8_t* frame(int lane) { return frames_.data() + static_cast<size_t>(lane) * frame_bytes_; }
  // The place that an address of this kind names, checked.
  uint8_t* shared(uint64_t address, size_t bytes);
  uint8_t* global(uint64_t address, size_t bytes);
  uint8_t* generic(uint64_t address, size_t bytes);
  uint8_t* own(uint64_t address, size_t) { return reinterpret_cast<uint8_t*>(address); }  // frames and parameters
  // The same of many bytes, whatever their alignment.
  uint8_t* shared_bytes(uint64_t address, size_t bytes);
  uint8_t* global_bytes(uint64_t address, size_t bytes);
  // Between addresses of shared memory and places there.
  uint64_t shared_address(uint64_t place) const;
  uint64_t generic_address(uint64_t shared) const;
  // That the instruction says, with its `which`-th offset.
  inline uint64_t address(const Instruction& instruction, size_t operand, size_t which, int lane);

  Block& block;
  const int number;
  State state = State::kReady;
  uint32_t carry = 0;     // of each lane
  bool looks = false;     // set by an instruction that found that it has to wait
  uint64_t meetings = 0;  // of the cluster, that it has come to
  uint32_t lanes() const { return alive_; }

 private:
  void regroup();
  bool complete(const Instruction& instruction) const;
  void part(uint32_t some, int place);
  void wait_for_others(const Instruction& instruction);
  void leave(uint32_t lanes, bool function);
  void step(const Instruction& instruction);
  [[noreturn]] void blame(const Instruction& instruction, const std::string& what) const;

  const Function& function_;
  uint8_t* registers_;
  const uint8_t* constants_;
  std::vector<uint32_t> predicates_;
  std::vector<uint8_t> frames_;
  size_t frame_bytes_;
  uint32_t alive_, group_ = 0, parked_ = 0;
  int at_ = 0;     // of the group
  int limit_ = 0;  // where it meets others, or where they are behind it
  std::array<int, 32> places_;
  std::array<std::vector<int>, 32> returns_;
  std::array<Memory::Range, 4> recent_;
  size_t oldest_ = 0;
};

class Block {
 public:
  struct Barrier {
    uint32_t arrived = 0;                    // threads
    uint32_t expected = 0;                   // 0: all that are left
    uint32_t all = ~0u, any = 0, count = 0;  // of predicates
    std::vector<std::pair<Warp*, const Instruction*>> waiting;
  };

  Block(const Launch& launch, const Memory& memory, Size index, uint32_t rank,
        std::vector<std::unique_ptr<Block>>& cluster, uint8_t* registers);

  // Of a warp whose lanes are all there. Lets everybody go on when it was the last.
  void arrive(Warp& warp, const Instruction& instruction, int number, uint32_t expected, uint32_t bits);
  void release_complete();
  uint32_t warps_left() const;

  const Launch& launch;
  const Memory& memory;
  const Size index;
  const uint32_t rank;  // in its cluster
  std::vector<std::unique_ptr<Block>>& cluster;
  std::vector<uint64_t> shared_memory;
  std::deque<Warp> warps;
  std::array<Barrier, 16> barriers;
  uint8_t* shared() { return reinterpret_cast<uint8_t*>(shared_memory.data()); }
  uint32_t declared_at() const { return (launch.shared_bytes + 127) / 128 * 128; }
  size_t shared_size() const { return shared_memory.size() * sizeof(uint64_t); }
};

template <class Work>
inline void for_lanes(uint32_t lanes, const Work& work) {
  if (lanes == ~0u) {
    for (int lane = 0; lane < 32; ++lane) work(lane);
  } else {
    for (; lanes != 0; lanes &= lanes - 1) work(std::countr_zero(lanes) & 31);
  }
}

// A value of a lane. What has fewer than 4 bytes stands in the low ones of 4, and the others are 0.
template <class T>
inline T get(const uint8_t* lanes, int lane) {
  if constexpr (sizeof(T) >= 4) {
    return reinterpret_cast<const T*>(lanes)[lane];
  } else {
    return static_cast<T>(reinterpret_cast<const uint32_t*>(lanes)[lane]);
  }
}
template <class T>
inline void put(uint8_t* lanes, int lane, T value) {
  if constexpr (sizeof(T) >= 4) {
    reinterpret_cast<T*>(lanes)[lane] = value;
  } else {
    reinterpret_cast<uint32_t*>(lanes)[lane] = static_cast<std::make_unsigned_t<T>>(value);
  }
}

inline uint64_t Warp::address(const Instruction& instruction, size_t operand, size_t which, int lane) {
  const Operand& base = instruction[operand];
  const auto offset = static_cast<uint64_t>(instruction.offsets[which]);
  switch (base.bank) {
    case Operand::Bank::kFrame:
      return reinterpret_cast<uint64_t>(frame(lane)) + base.at + offset;
    case Operand::Bank::kParameter:
      return reinterpret_cast<uint64_t>(block.launch.parameters.data()) + base.at + offset;
    default:
      if (base.lane_bytes == 8) return get<uint64_t>(at(base), lane) + offset;
      return static_cast<uint32_t>(get<uint32_t>(at(base), lane) + offset);  // of shared memory
  }
}

}  // namespace emulator
