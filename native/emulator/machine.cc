#include "machine.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>

namespace emulator {
namespace {

constexpr int kAtATime = 1 << 14;    // instructions of a warp before others go on
constexpr int kMostLooks = 1 << 20;  // rounds in which all warps only look whether others have done something
constexpr size_t kAlignment = 256;

std::string hexadecimal(uint64_t address) {
  char text[20];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

}  // namespace

void* Memory::allocate(size_t bytes) {
  const size_t room = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, room);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0xff, room);  // no numbers: what was not written is not to be of use
  ranges_[static_cast<uint8_t*>(memory)] = bytes;
  taken_ += bytes;
  return memory;
}

bool Memory::release(void* memory) {
  const auto found = ranges_.find(static_cast<uint8_t*>(memory));
  if (found == ranges_.end()) return false;
  taken_ -= found->second;
  ranges_.erase(found);
  std::free(memory);
  return true;
}

Memory::Range Memory::find(const uint8_t* at, size_t bytes) const {
  auto found = ranges_.upper_bound(at);
  if (found == ranges_.begin()) return {};
  --found;
  const Range range = {found->first, found->first + found->second};
  return range.has(at, bytes) ? range : Range();
}

Warp::Warp(Block& block, int number, uint32_t lanes, uint8_t* registers)
    : block(block),
      number(number),
      function_(*block.launch.function),
      registers_(registers),
      constants_(reinterpret_cast<const uint8_t*>(function_.constants.data())),
      predicates_(function_.predicates),
      frame_bytes_((function_.frame_bytes + 63) / 64 * 64),
      alive_(lanes) {
  frames_.assign(32 * frame_bytes_ + 64, 0xff);
  places_.fill(function_.first);
  regroup();
}

uint64_t Warp::special(Special which, int lane) const {
  const Size& threads = block.launch.block;
  const uint32_t thread = static_cast<uint32_t>(number * 32 + lane);
  switch (which) {
    case Special::kThreadX:
      return thread % threads.x;
    case Special::kThreadY:
      return thread / threads.x % threads.y;
    case Special::kThreadZ:
      return thread / threads.x / threads.y;
    case Special::kThreadsX:
      return threads.x;
    case Special::kThreadsY:
      return threads.y;
    case Special::kThreadsZ:
      return threads.z;
    case Special::kBlockX:
      return block.index.x;
    case Special::kBlockY:
      return block.index.y;
    case Special::kBlockZ:
      return block.index.z;
    case Special::kBlocksX:
      return block.launch.grid.x;
    case Special::kBlocksY:
      return block.launch.grid.y;
    case Special::kBlocksZ:
      return block.launch.grid.z;
    case Special::kLane:
      return static_cast<uint64_t>(lane);
    case Special::kWarp:
      return static_cast<uint64_t>(number);
    case Special::kLanesBelow:
      return (1u << lane) - 1;
    case Special::kClusterRank:
      return block.rank;
    case Special::kClusterSize:
      return block.cluster.size();
    case Special::kClock:  // nanoseconds
      return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    case Special::kProcessor:
      break;
  }
  return 0;
}

uint8_t* Warp::shared(uint64_t address, size_t bytes) {
  if (address % bytes != 0) throw Fault("shared memory at " + hexadecimal(address) + ", which is not aligned");
  return shared_bytes(address, bytes);
}

uint8_t* Warp::shared_bytes(uint64_t address, size_t bytes) {
  const bool declared = address >= kDeclaredShared;
  const uint64_t offset = declared ? address - kDeclaredShared : address;
  const size_t size = declared ? block.launch.function->shared_bytes : block.launch.shared_bytes;
  if (offset + bytes > size) {
    throw Fault(std::to_string(bytes) + " bytes of shared memory at " + hexadecimal(offset) + " of " +
                hexadecimal(size) + (declared ? ", declared" : ""));
  }
  return block.shared() + (declared ? block.declared_at() : 0) + offset;
}

uint64_t Warp::shared_address(uint64_t place) const {
  const uint64_t offset = place - reinterpret_cast<uint64_t>(block.shared());
  return offset < block.declared_at() ? offset : offset - block.declared_at() + kDeclaredShared;
}

uint64_t Warp::generic_address(uint64_t shared) const {
  const uint64_t offset = shared >= kDeclaredShared ? shared - kDeclaredShared + block.declared_at() : shared;
  return reinterpret_cast<uint64_t>(block.shared()) + offset;
}

uint8_t* Warp::global(uint64_t address, size_t bytes) {
  if (address % bytes != 0) throw Fault("address " + hexadecimal(address) + ", which is not aligned");
  return global_bytes(address, bytes);
}

uint8_t* Warp::global_bytes(uint64_t address, size_t bytes) {
  auto* const place = reinterpret_cast<uint8_t*>(address);
  for (const Memory::Range& range : recent_) {
    if (range.has(place, bytes)) return place;
  }
  const Memory::Range range = block.memory.find(place, bytes);
  if (range.begin == nullptr) {
    if (block.launch.module->has_memory(place, place + bytes)) return place;
    throw Fault(std::to_string(bytes) + " bytes at " + hexadecimal(address) + ", which is nobody's memory");
  }
  recent_[oldest_++ % recent_.size()] = range;
  return place;
}

uint8_t* Warp::generic(uint64_t address, size_t bytes) {
  auto* const place = reinterpret_cast<uint8_t*>(address);
  const auto within = [&](const uint8_t* begin, size_t size) {
    return place >= begin && place + bytes <= begin + size;
  };
  if (within(block.shared(), block.shared_size()) || within(frames_.data(), frames_.size()) ||
      within(block.launch.parameters.data(), block.launch.parameters.size())) {
    return place;
  }
  for (const auto& other : block.cluster) {
    if (!within(other->shared(), other->shared_size())) continue;
    if (other->warps_left() == 0) throw Fault("shared memory of a block that has ended");
    return place;
  }
  return global(address, bytes);
}

// Chooses who goes on: lanes at the lowest place, but for those that wait there for others.
void Warp::regroup() {
  at_ = INT_MAX;
  const uint32_t ready = alive_ & ~parked_;
  for (uint32_t rest = ready; rest != 0; rest &= rest - 1) at_ = std::min(at_, places_[std::countr_zero(rest)]);
  group_ = 0;
  limit_ = INT_MAX;
  for (uint32_t rest = alive_; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (places_[lane] == at_) group_ |= 1u << lane;
    if (places_[lane] > at_) limit_ = std::min(limit_, places_[lane]);
  }
  parked_ &= ~group_;
}

bool Warp::complete(const Instruction& instruction) const {
  uint32_t members = ~0u;
  if (instruction.members.bank != Operand::Bank::kNone) {
    members = get<uint32_t>(const_cast<Warp*>(this)->at(instruction.members), std::countr_zero(group_));
  }
  return (members & alive_ & ~group_) == 0;
}

void Warp::blame(const Instruction& instruction, const std::string& what) const {
  throw Fault(function_.name + ", block " + std::to_string(block.index.x) + "," + std::to_string(block.index.y) + "," +
              std::to_string(block.index.z) + ", warp " + std::to_string(number) + ": " + what +
              " in: " + function_.lines[static_cast<size_t>(instruction.line)]);
}

// `some` of the group go on there, the others behind the instruction.
void Warp::part(uint32_t some, int place) {
  for_lanes(group_, [&](int lane) { places_[lane] = at_ + 1; });
  for_lanes(some, [&](int lane) { places_[lane] = place; });
  regroup();
}

void Warp::wait_for_others(const Instruction& instruction) {
  for_lanes(group_, [&](int lane) { places_[lane] = at_; });
  parked_ |= group_;
  if ((alive_ & ~parked_) == 0) blame(instruction, "lanes wait for each other at different places");
  regroup();
}

void Warp::leave(uint32_t lanes, bool function) {
  for_lanes(group_, [&](int lane) { places_[lane] = at_ + 1; });
  uint32_t done = lanes;
  for_lanes(lanes, [&](int lane) {
    if (!function || returns_[lane].empty()) return;
    places_[lane] = returns_[lane].back();
    returns_[lane].pop_back();
    done &= ~(1u << lane);
  });
  alive_ &= ~done;
  parked_ = 0;  // who waited for these waits no more
  if (alive_ == 0) {
    state = State::kDone;
  } else {
    regroup();
  }
}

void Warp::step(const Instruction& instruction) {
  uint32_t lanes = group_;
  if (instruction.guard.bank != Operand::Bank::kNone) lanes &= predicate(instruction.guard);
  if (lanes == 0) {
    ++at_;
    return;
  }
  switch (instruction.flow) {
    case Flow::kNext:
      ++at_;
      instruction.run(*this, instruction, lanes);
      break;
    case Flow::kBranch:
      if (lanes == alive_) {
        at_ = instruction.target;
      } else {
        part(lanes, instruction.target);
      }
      break;
    case Flow::kCall:
      for_lanes(lanes, [&](int lane) { returns_[lane].push_back(at_ + 1); });
      part(lanes, instruction.target);
      break;
    case Flow::kReturn:
    case Flow::kExit:
      leave(lanes, instruction.flow == Flow::kReturn);
      break;
  }
}

bool Warp::go_on() {
  for (int left = kAtATime; left > 0; --left) {
    if (at_ >= limit_) {
      for_lanes(group_, [&](int lane) { places_[lane] = at_; });
      regroup();
    }
    const Instruction& instruction = function_.code[static_cast<size_t>(at_)];
    if (instruction.collective && !complete(instruction)) {
      wait_for_others(instruction);
      continue;
    }
    looks = false;
    try {
      step(instruction);
    } catch (const Fault& fault) {
      blame(instruction, fault.what());
    }
    if (looks) return false;
    if (state != State::kReady) return true;
  }
  return true;
}

Block::Block(const Launch& launch, const Memory& memory, Size index, uint32_t rank,
             std::vector<std::unique_ptr<Block>>& cluster, uint8_t* registers)
    : launch(launch), memory(memory), index(index), rank(rank), cluster(cluster) {
  shared_memory.assign((declared_at() + launch.function->shared_bytes) / sizeof(uint64_t) + 2, ~uint64_t{0});
  const auto threads = static_cast<int>(launch.block.count());
  for (int first = 0; first < threads; first += 32) {
    warps.emplace_back(*this, first / 32, threads - first >= 32 ? ~0u : (1u << (threads - first)) - 1, registers);
    registers += launch.function->register_bytes;
  }
}

uint32_t Block::warps_left() const {
  return static_cast<uint32_t>(
      std::count_if(warps.begin(), warps.end(), [](const Warp& warp) { return warp.state != Warp::State::kDone; }));
}

void Block::arrive(Warp& warp, const Instruction& instruction, int number, uint32_t expected, uint32_t bits) {
  Barrier& barrier = barriers.at(static_cast<size_t>(number));
  barrier.expected = expected;
  barrier.arrived += 32;
  const uint32_t lanes = warp.lanes();
  barrier.all &= (bits & lanes) == lanes ? ~0u : 0;
  barrier.any |= (bits & lanes) != 0 ? ~0u : 0;
  barrier.count += static_cast<uint32_t>(std::popcount(bits & lanes));
  barrier.waiting.emplace_back(&warp, &instruction);
  warp.state = Warp::State::kAtBarrier;
  release_complete();
}

void Block::release_complete() {
  for (Barrier& barrier : barriers) {
    if (barrier.waiting.empty()) continue;
    const uint32_t expected = barrier.expected != 0 ? barrier.expected : 32 * warps_left();
    if (barrier.arrived < expected) continue;
    Barrier done;
    std::swap(done, barrier);
    for (const auto& [warp, instruction] : done.waiting) {
      warp->state = Warp::State::kReady;
      if (instruction->number == 0) continue;  // it asks nothing
      const Operand& result = instruction->operands.front();
      if (instruction->number == 'a') warp->set_predicate(result, ~0u, done.all);
      if (instruction->number == 'o') warp->set_predicate(result, ~0u, done.any);
      if (instruction->number == 'p') {
        for (int lane = 0; lane < 32; ++lane) put<uint32_t>(warp->at(result), lane, done.count);
      }
    }
  }
}

namespace {

// Blocks that share their warps' turns.
void run_cluster(std::vector<std::unique_ptr<Block>>& cluster) {
  for (int looks = 0;;) {
    bool alive = false, acted = false, ready = false;
    uint64_t meetings = UINT64_MAX;  // that all have come to
    for (const auto& block : cluster) {
      for (const Warp& warp : block->warps) {
        if (warp.state != Warp::State::kDone) meetings = std::min(meetings, warp.meetings);
      }
    }
    for (const auto& block : cluster) {
      for (Warp& warp : block->warps) {
        if (warp.state == Warp::State::kAtClusterBarrier && warp.meetings <= meetings) warp.state = Warp::State::kReady;
        if (warp.state == Warp::State::kReady) {
          ready = true;
          acted = warp.go_on() || acted;
          if (warp.state == Warp::State::kDone) block->release_complete();
        }
        alive = alive || warp.state != Warp::State::kDone;
      }
    }
    if (!alive) return;
    looks = acted ? 0 : looks + 1;
    if (!ready || looks > kMostLooks) {
      throw Fault(cluster.front()->launch.function->name + ": all warps that are left wait for each other");
    }
  }
}

}  // namespace

void run(const Launch& launch, const Memory& memory) {
  const Size& grid = launch.grid;
  const uint32_t together = static_cast<uint32_t>(launch.cluster.count());
  std::vector<std::unique_ptr<Block>> cluster;
  // Those of blocks that are done serve the next ones, as they are.
  const size_t registers = (launch.block.count() + 31) / 32 * launch.function->register_bytes;
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  const std::unique_ptr<uint8_t, Free> files(static_cast<uint8_t*>(std::aligned_alloc(64, together * registers + 64)));
  // Clusters lie along x.
  if (launch.cluster.y != 1 || launch.cluster.z != 1 || grid.x % together != 0) throw Fault("clusters of such a shape");
  for (uint32_t z = 0; z < grid.z; ++z) {
    for (uint32_t y = 0; y < grid.y; ++y) {
      for (uint32_t x = 0; x < grid.x; x += together) {
        cluster.clear();
        for (uint32_t rank = 0; rank < together; ++rank) {
          cluster.push_back(std::make_unique<Block>(launch, memory, Size{x + rank, y, z}, rank, cluster,
                                                    files.get() + rank * registers));
        }
        run_cluster(cluster);
      }
    }
  }
}

}  // namespace emulator
