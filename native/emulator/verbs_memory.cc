// Moves, loads and stores, atomic operations, copies to shared memory and the barriers that count their bytes.
#include <algorithm>
#include <type_traits>

#include "verbs.h"

namespace emulator {
namespace {

// How an address of this kind becomes a place.
using Place = uint8_t* (Warp::*)(uint64_t address, size_t bytes);

Place place_of(const Mnemonic& mnemonic) {
  if (mnemonic.has("shared") || mnemonic.has("shared::cta")) return &Warp::shared;
  if (mnemonic.has("global")) return &Warp::global;
  if (mnemonic.has("local") || mnemonic.has("param")) return &Warp::own;
  return &Warp::generic;
}

template <class Work>
bool with_element(const std::string& type, const Work& work) {
  if (type == "s8") return work(Tag<int8_t>());
  if (type == "u8" || type == "b8") return work(Tag<uint8_t>());
  if (type == "s16") return work(Tag<int16_t>());
  if (type.ends_with("16")) return work(Tag<uint16_t>());
  if (type == "s32") return work(Tag<int32_t>());
  if (type.ends_with("32")) return work(Tag<uint32_t>());
  if (type.ends_with("64")) return work(Tag<uint64_t>());
  return false;
}

size_t vector_of(const Mnemonic& mnemonic) { return mnemonic.has("v4") ? 4 : mnemonic.has("v2") ? 2 : 1; }

// In lanes of 4 bytes or of 8, and there as wide as these.
template <class T>
void put_element(Warp& warp, const Operand& operand, int lane, T value) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  if (operand.bank == Operand::Bank::kNone) return;  // "_"
  if (operand.lane_bytes == 8) {
    put<uint64_t>(warp.at(operand), lane, static_cast<uint64_t>(static_cast<Wide>(value)));
  } else {
    put<uint32_t>(warp.at(operand), lane, static_cast<uint32_t>(static_cast<Wide>(value)));
  }
}
template <class T>
T get_element(Warp& warp, const Operand& operand, int lane) {
  if (operand.lane_bytes == 8) return static_cast<T>(get<uint64_t>(warp.at(operand), lane));
  return static_cast<T>(get<uint32_t>(warp.at(operand), lane));
}

template <class T, size_t kCount, auto kPlace>
void load(Warp& warp, const Instruction& i, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const uint8_t* const from = (warp.*kPlace)(warp.address(i, kCount, 0, lane), sizeof(T) * kCount);
    T values[kCount];
    std::memcpy(values, from, sizeof values);
    for (size_t k = 0; k < kCount; ++k) put_element<T>(warp, i[k], lane, values[k]);
  });
}

template <class T, size_t kCount, auto kPlace>
void store(Warp& warp, const Instruction& i, uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    T values[kCount];
    for (size_t k = 0; k < kCount; ++k) values[k] = get_element<T>(warp, i[k + 1], lane);
    std::memcpy((warp.*kPlace)(warp.address(i, 0, 0, lane), sizeof values), values, sizeof values);
  });
}

template <class T, size_t kCount>
bool moves(const Mnemonic& mnemonic, Instruction& i) {
  const Place place = place_of(mnemonic);
  const auto choose = [&]<auto kPlace>() {
    if (place != kPlace) return false;
    i.run = mnemonic.name() == "ld" ? load<T, kCount, kPlace> : store<T, kCount, kPlace>;
    return true;
  };
  return choose.template operator()<&Warp::shared>() || choose.template operator()<&Warp::global>() ||
         choose.template operator()<&Warp::own>() || choose.template operator()<&Warp::generic>();
}

bool loads_and_stores(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() != "ld" && mnemonic.name() != "st") return false;
  return with_element(mnemonic.last(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    switch (vector_of(mnemonic)) {
      case 1:
        return moves<T, 1>(mnemonic, i);
      case 2:
        return moves<T, 2>(mnemonic, i);
      default:
        return moves<T, 4>(mnemonic, i);
    }
  });
}

// Registers, numbers, what threads know of themselves, addresses, and parts of a wider register.
bool plain_move(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() != "mov" || mnemonic.last() == "pred") return false;
  const Operand& source = i.operands.back();
  if (i.groups.at(0) == 1 && i.groups.at(1) == 1) {
    switch (source.bank) {
      case Operand::Bank::kSpecial:
        i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
          for_lanes(lanes, [&](int lane) {
            put_element<uint64_t>(warp, i[0], lane, warp.special(static_cast<Special>(i[1].at), lane));
          });
        };
        return true;
      case Operand::Bank::kFrame:
      case Operand::Bank::kParameter:
        i.offsets = {0};
        i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
          for_lanes(lanes, [&](int lane) { put<uint64_t>(warp.at(i[0]), lane, warp.address(i, 1, 0, lane)); });
        };
        return true;
      default:
        if (i.operands.front().lane_bytes == 8) return lanewise<uint64_t, uint64_t>(i, [](uint64_t a) { return a; });
        return lanewise<uint32_t, uint32_t>(i, [](uint32_t a) { return a; });
    }
  }
  const size_t parts = std::max(i.groups.at(0), i.groups.at(1));
  const int bits = static_cast<int>(mnemonic.last().ends_with("64") ? 64 : 32) / static_cast<int>(parts);
  i.number = bits;
  if (i.groups[0] > 1) {
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      const uint64_t mask = (uint64_t{1} << i.number) - 1;
      for_lanes(lanes, [&](int lane) {
        const auto whole = get_element<uint64_t>(warp, i.operands.back(), lane);
        for (size_t k = 0; k + 1 < i.operands.size(); ++k) {
          put_element<uint64_t>(warp, i[k], lane, whole >> (i.number * static_cast<int>(k)) & mask);
        }
      });
    };
  } else {
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      const uint64_t mask = (uint64_t{1} << i.number) - 1;
      for_lanes(lanes, [&](int lane) {
        uint64_t whole = 0;
        for (size_t k = 1; k < i.operands.size(); ++k) {
          whole |= (get_element<uint64_t>(warp, i[k], lane) & mask) << (i.number * static_cast<int>(k - 1));
        }
        put_element<uint64_t>(warp, i[0], lane, whole);
      });
    };
  }
  return true;
}

// Between addresses that name the kind of memory, and those that do not.
bool address_conversion(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() != "cvta") return false;
  if (!mnemonic.has("shared")) return lanewise<uint64_t, uint64_t>(i, [](uint64_t a) { return a; });
  require_lanes<uint64_t>(i, 0);
  require_lanes<uint64_t>(i, 1);
  if (mnemonic.has("to")) {
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      for_lanes(lanes, [&](int lane) {
        put<uint64_t>(warp.at(i[0]), lane, warp.shared_address(get<uint64_t>(warp.at(i[1]), lane)));
      });
    };
  } else {
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      for_lanes(lanes, [&](int lane) {
        const auto address = get<uint64_t>(warp.at(i[1]), lane);
        put<uint64_t>(warp.at(i[0]), lane, warp.generic_address(address));
      });
    };
  }
  return true;
}

// The same place in another block of the cluster, as an address that does not name the kind of memory.
bool places_of_blocks(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() != "mapa" || mnemonic.parts.size() != 2 || mnemonic.last() != "u64") return false;
  require_lanes<uint64_t>(i, 0);
  require_lanes<uint64_t>(i, 1);
  i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
    for_lanes(lanes, [&](int lane) {
      const auto rank = get<uint32_t>(warp.at(i[2]), lane);
      if (rank >= warp.block.cluster.size())
        throw Fault("block " + std::to_string(rank) + ", which the cluster has not");
      const uint64_t offset = get<uint64_t>(warp.at(i[1]), lane) - reinterpret_cast<uint64_t>(warp.block.shared());
      put<uint64_t>(warp.at(i[0]), lane, reinterpret_cast<uint64_t>(warp.block.cluster[rank]->shared()) + offset);
    });
  };
  return true;
}

// Atomic operations -----------------------------------------------------------------------------------------------

template <class T, class Function>
bool atomically(const Mnemonic& mnemonic, Instruction& i, Function) {
  const Place place = place_of(mnemonic);
  const auto choose = [&]<auto kPlace>() {
    if (place != kPlace) return false;
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      const size_t base = i.number;  // behind the result, where there is one
      for_lanes(lanes, [&](int lane) {
        uint8_t* const at = (warp.*kPlace)(warp.address(i, base, 0, lane), sizeof(T));
        T before;
        std::memcpy(&before, at, sizeof before);
        const T operand = get<T>(warp.at(i[base + 1]), lane);
        const T last = base + 2 < i.operands.size() ? get<T>(warp.at(i[base + 2]), lane) : T();
        const T after = Function{}(before, operand, last);
        std::memcpy(at, &after, sizeof after);
        if (base > 0) put<T>(warp.at(i[0]), lane, before);
      });
    };
    return true;
  };
  i.number = mnemonic.name() == "atom" ? 1 : 0;
  return choose.template operator()<&Warp::shared>() || choose.template operator()<&Warp::global>() ||
         choose.template operator()<&Warp::generic>();
}

bool atomics(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() != "atom" && mnemonic.name() != "red") return false;
  const auto choose = [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (mnemonic.has("add")) return atomically<T>(mnemonic, i, [](T a, T b, T) { return static_cast<T>(a + b); });
    if (mnemonic.has("min")) return atomically<T>(mnemonic, i, [](T a, T b, T) { return std::min(a, b); });
    if (mnemonic.has("max")) return atomically<T>(mnemonic, i, [](T a, T b, T) { return std::max(a, b); });
    if (mnemonic.has("exch")) return atomically<T>(mnemonic, i, [](T, T b, T) { return b; });
    if (mnemonic.has("cas")) return atomically<T>(mnemonic, i, [](T a, T b, T c) { return a == b ? c : a; });
    if constexpr (std::is_integral_v<T>) {
      if (mnemonic.has("and")) return atomically<T>(mnemonic, i, [](T a, T b, T) { return a & b; });
      if (mnemonic.has("or")) return atomically<T>(mnemonic, i, [](T a, T b, T) { return a | b; });
      if (mnemonic.has("xor")) return atomically<T>(mnemonic, i, [](T a, T b, T) { return a ^ b; });
    }
    return false;
  };
  const std::string& type = mnemonic.last();
  if (type == "s32") return choose(Tag<int32_t>());
  if (type == "u32" || type == "b32") return choose(Tag<uint32_t>());
  if (type == "u64" || type == "b64") return choose(Tag<uint64_t>());
  if (type == "f32") return choose(Tag<float>());
  if (type == "f64") return choose(Tag<double>());
  return false;
}

// Barriers in shared memory ---------------------------------------------------------------------------------------

// What the 8 bytes of one are, here.
struct Phases {
  uint32_t missing : 15;   // arrivals
  uint32_t expected : 15;  // of each phase
  uint32_t parity : 1;     // of the phase that is not complete
  uint32_t : 1;
  int32_t bytes;  // that are still to come

  void settle() {
    if (missing != 0 || bytes != 0) return;
    missing = expected;
    parity ^= 1;
  }
  void arrive() {
    if (missing == 0) throw Fault("more arrivals than a barrier expects");
    --missing;
    settle();
  }
};
static_assert(sizeof(Phases) == 8);

Phases& phases_at(Warp& warp, uint64_t address) {
  return *reinterpret_cast<Phases*>(warp.shared(address, sizeof(Phases)));
}

bool barriers(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() != "mbarrier") return false;
  const std::string& what = mnemonic.parts[1];
  if (what == "init") {
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      for_lanes(lanes, [&](int lane) {
        const uint32_t count = get<uint32_t>(warp.at(i[1]), lane);
        if (count == 0 || count >= 1 << 15) throw Fault("a barrier of " + std::to_string(count) + " arrivals");
        Phases& phases = phases_at(warp, warp.address(i, 0, 0, lane));
        phases = {};
        phases.missing = phases.expected = count;
      });
    };
  } else if (what == "arrive") {  // its result is the state before, which nobody looks at
    i.number = mnemonic.has("expect_tx");
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      for_lanes(lanes, [&](int lane) {
        Phases& phases = phases_at(warp, warp.address(i, 1, 0, lane));
        if (i.number != 0) phases.bytes += get<int32_t>(warp.at(i[2]), lane);
        phases.arrive();
      });
    };
  } else if ((what == "test_wait" || what == "try_wait") && mnemonic.has("parity")) {
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      uint32_t complete = 0;
      for_lanes(lanes, [&](int lane) {
        const Phases& phases = phases_at(warp, warp.address(i, 1, 0, lane));
        complete |= uint32_t{phases.parity != get<uint32_t>(warp.at(i[2]), lane)} << lane;
      });
      warp.set_predicate(i[0], lanes, complete);
      warp.looks = (complete & lanes) != lanes;
    };
  } else {
    return false;
  }
  return true;
}

// Copies that go on by themselves, and here are done at once.
bool copies(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() != "cp" || mnemonic.parts.at(1) != "async") return false;
  if (mnemonic.has("wait_group") || mnemonic.has("wait_all") || mnemonic.has("commit_group")) {
    i.run = [](Warp&, const Instruction&, uint32_t) {};
  } else if (mnemonic.has("mbarrier") && mnemonic.has("noinc")) {
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      for_lanes(lanes, [&](int lane) { phases_at(warp, warp.address(i, 0, 0, lane)).arrive(); });
    };
  } else if (mnemonic.has("bulk")) {
    if (!mnemonic.has("shared::cluster") || !mnemonic.has("global")) return false;
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      for_lanes(lanes, [&](int lane) {
        const uint64_t to = warp.address(i, 0, 0, lane), from = warp.address(i, 1, 1, lane);
        const uint32_t bytes = get<uint32_t>(warp.at(i[2]), lane);
        if ((to | from | bytes) % 16 != 0) throw Fault("a bulk copy that is not aligned");
        if (bytes == 0) return;
        std::memcpy(warp.shared_bytes(to, bytes), warp.global_bytes(from, bytes), bytes);
        Phases& phases = phases_at(warp, warp.address(i, 3, 2, lane));
        phases.bytes -= static_cast<int32_t>(bytes);
        phases.settle();
      });
    };
  } else if (mnemonic.has("shared") && mnemonic.has("global")) {
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      for_lanes(lanes, [&](int lane) {
        const uint32_t bytes = get<uint32_t>(warp.at(i[2]), lane);
        const bool part = i.operands.size() > 3 && i[3].lane_bytes == 4;
        const uint32_t there = part ? get<uint32_t>(warp.at(i[3]), lane) : bytes;
        uint8_t* const to = warp.shared(warp.address(i, 0, 0, lane), bytes);
        if (there > 0) std::memcpy(to, warp.global(warp.address(i, 1, 1, lane), there), there);
        std::memset(to + there, 0, bytes - there);
      });
    };
  } else {
    return false;
  }
  return true;
}

// What is about time, order or caches: here all happens in order, and there are none.
bool hints(const Mnemonic& mnemonic, Instruction& i) {
  static const std::set<std::string> names = {"membar",         "fence",     "prefetch",
                                              "griddepcontrol", "nanosleep", "setmaxnreg"};
  if (mnemonic.name() == "createpolicy") return lanewise<uint64_t, uint64_t>(i, [](uint64_t) { return 0; });
  if (names.count(mnemonic.name()) == 0) return false;
  i.run = [](Warp&, const Instruction&, uint32_t) {};
  return true;
}

}  // namespace

Instruction copy_slot(const Slot& to, const Slot& from) {
  if (to.bytes != from.bytes) throw Fault("an argument of " + std::to_string(from.bytes) + " bytes");
  Instruction instruction;
  instruction.offsets = {to.at, from.at};
  instruction.number = to.bytes;
  instruction.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
    for_lanes(lanes, [&](int lane) {
      std::memcpy(warp.frame(lane) + i.offsets[0], warp.frame(lane) + i.offsets[1], static_cast<size_t>(i.number));
    });
  };
  return instruction;
}

bool decode_memory(const Mnemonic& mnemonic, Instruction& i) {
  return plain_move(mnemonic, i) || loads_and_stores(mnemonic, i) || address_conversion(mnemonic, i) ||
         places_of_blocks(mnemonic, i) || atomics(mnemonic, i) || barriers(mnemonic, i) || copies(mnemonic, i) ||
         hints(mnemonic, i);
}

}  // namespace emulator
