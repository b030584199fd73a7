// What the lanes of a warp, or the warps of a block, do together.
#include <algorithm>

#include "verbs.h"

namespace emulator {
namespace {

// Of all lanes, before any of them has a result.
template <class T>
std::array<T, 32> all(Warp& warp, const Operand& operand) {
  std::array<T, 32> values;
  for (int lane = 0; lane < 32; ++lane) values[lane] = get<T>(warp.at(operand), lane);
  return values;
}

bool shuffles(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() != "shfl") return false;
  const size_t results = i.groups.at(0);
  i.collective = true;
  i.members = i.operands.at(results + 3);
  i.number = mnemonic.parts.at(2).front();  // up, down, bfly, idx
  i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
    const size_t first = i.groups[0];
    const auto values = all<uint32_t>(warp, i[first]), by = all<uint32_t>(warp, i[first + 1]),
               limits = all<uint32_t>(warp, i[first + 2]);
    uint32_t inside = 0;
    for_lanes(lanes, [&](int lane) {
      const int segment = static_cast<int>(limits[lane] >> 8 & 31), limit = static_cast<int>(limits[lane] & 31);
      const int least = lane & segment, most = least | (limit & ~segment), step = static_cast<int>(by[lane] & 31);
      int from = lane;
      bool good = false;
      switch (i.number) {
        case 'u':
          from = lane - step;
          good = from >= most;
          break;
        case 'd':
          from = lane + step;
          good = from <= most;
          break;
        case 'b':
          from = lane ^ step;
          good = from <= most;
          break;
        default:
          from = least | (step & ~segment);
          good = from <= most;
      }
      put<uint32_t>(warp.at(i[0]), lane, values[good ? from : lane]);
      inside |= uint32_t{good} << lane;
    });
    if (first == 2) warp.set_predicate(i[1], lanes, inside);
  };
  return true;
}

bool votes(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() != "vote") return false;
  i.collective = true;
  i.members = i.operands.at(2);
  if (mnemonic.has("ballot")) {
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      const uint32_t bits = warp.predicate(i[1]) & lanes;
      for_lanes(lanes, [&](int lane) { put<uint32_t>(warp.at(i[0]), lane, bits); });
    };
  } else if (mnemonic.has("any")) {
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      warp.set_predicate(i[0], lanes, (warp.predicate(i[1]) & lanes) != 0 ? ~0u : 0);
    };
  } else if (mnemonic.has("all")) {
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      warp.set_predicate(i[0], lanes, (warp.predicate(i[1]) & lanes) == lanes ? ~0u : 0);
    };
  } else {
    return false;
  }
  return true;
}

template <class T, class Function>
bool reduce(Instruction& i, Function) {
  i.collective = true;
  i.members = i.operands.at(2);
  i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
    const auto values = all<T>(warp, i[1]);
    T result = values[std::countr_zero(lanes) & 31];
    for_lanes(lanes & (lanes - 1), [&](int lane) { result = Function{}(result, values[lane]); });
    for_lanes(lanes, [&](int lane) { put<T>(warp.at(i[0]), lane, result); });
  };
  return true;
}

bool reductions(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() != "redux") return false;
  const auto choose = [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (mnemonic.has("min")) return reduce<T>(i, [](T a, T b) { return std::min(a, b); });
    if (mnemonic.has("max")) return reduce<T>(i, [](T a, T b) { return std::max(a, b); });
    if (mnemonic.has("add")) return reduce<T>(i, [](T a, T b) { return static_cast<T>(uint32_t(a) + uint32_t(b)); });
    if (mnemonic.has("or")) return reduce<T>(i, [](T a, T b) { return a | b; });
    if (mnemonic.has("and")) return reduce<T>(i, [](T a, T b) { return a & b; });
    return false;
  };
  return mnemonic.last() == "s32" ? choose(Tag<int32_t>()) : choose(Tag<uint32_t>());
}

// Products of matrices ----------------------------------------------------------------------------------------------
// A lane holds, with g = lane / 4 and k = lane % 4: of A rows g and g + 8, of B column g, of C rows g and g + 8 in
// columns 2k and 2k + 1.

// Eight rows of a matrix, or columns: a register has neighbours of each for a lane, and lanes go on where others end.
template <class Element, int kDepth, class Sum>
void unpack(const uint8_t* lanes, int step, Sum (*rows)[kDepth]) {
  constexpr int kRun = 16 / sizeof(Element);
  Element elements[8][kRun];
  std::memcpy(elements, lanes, sizeof elements);
  for (int row = 0; row < 8; ++row) {
    for (int k = 0; k < kRun; ++k) rows[row][step * kRun + k] = static_cast<Sum>(elements[row][k]);
  }
}

// d = A B + c, with Sum for sums: products of halves are exact in double, and rounded once.
template <class Result, class Sum, class A, class B, int kDepth>
void multiply(Warp& warp, const Instruction& i, uint32_t) {
  constexpr int kSteps =
      kDepth * static_cast<int>(sizeof(A)) / 16;  // registers of A for each of its two rows, and of B
  constexpr size_t kA = 4, kB = kA + 2 * kSteps, kC = kB + kSteps;
  Sum a[16][kDepth], columns[8][kDepth], b[kDepth][8], sums[16][8];
  for (int step = 0; step < kSteps; ++step) {
    unpack<A, kDepth>(warp.at(i[kA + 2 * step]), step, a);
    unpack<A, kDepth>(warp.at(i[kA + 2 * step + 1]), step, a + 8);
    unpack<B, kDepth>(warp.at(i[kB + step]), step, columns);
  }
  for (int depth = 0; depth < kDepth; ++depth) {
    for (int column = 0; column < 8; ++column) b[depth][column] = columns[column][depth];
  }
  const auto each = [&](const auto& work) {
    for (int r = 0; r < 4; ++r) {
      for (int lane = 0; lane < 32; ++lane) work(r, lane, sums[lane / 4 + 8 * (r / 2)][lane % 4 * 2 + r % 2]);
    }
  };
  each([&](int r, int lane, Sum& sum) { sum = static_cast<Sum>(get<Result>(warp.at(i[kC + r]), lane)); });
  for (int row = 0; row < 16; ++row) {
    for (int depth = 0; depth < kDepth; ++depth) {
      for (int column = 0; column < 8; ++column) sums[row][column] += a[row][depth] * b[depth][column];
    }
  }
  each([&](int r, int lane, Sum& sum) { put<Result>(warp.at(i[r]), lane, static_cast<Result>(sum)); });
}

bool products(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() != "mma") return false;
  i.collective = true;
  const auto is = [&](std::initializer_list<const char*> parts) {
    const std::vector<std::string> wanted(parts.begin(), parts.end());
    return std::equal(wanted.begin(), wanted.end(), mnemonic.parts.begin() + 3, mnemonic.parts.end());
  };
  using H = Half;
  using S = int8_t;
  using U = uint8_t;
  if (is({"m16n8k16", "row", "col", "f32", "f16", "f16", "f32"})) i.run = multiply<float, double, H, H, 16>;
  if (is({"m16n8k8", "row", "col", "f32", "f16", "f16", "f32"})) i.run = multiply<float, double, H, H, 8>;
  if (is({"m16n8k32", "row", "col", "s32", "u8", "s8", "s32"})) i.run = multiply<uint32_t, uint32_t, U, S, 32>;
  if (is({"m16n8k32", "row", "col", "s32", "u8", "u8", "s32"})) i.run = multiply<uint32_t, uint32_t, U, U, 32>;
  if (is({"m16n8k32", "row", "col", "s32", "s8", "s8", "s32"})) i.run = multiply<uint32_t, uint32_t, S, S, 32>;
  if (is({"m16n8k16", "row", "col", "s32", "u8", "s8", "s32"})) i.run = multiply<uint32_t, uint32_t, U, S, 16>;
  return i.run != nullptr;
}

// 8 x 8 matrices of 16 bits, of which a lane holds row g, columns 2k and 2k + 1.
bool matrices(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() == "movmatrix") {
    i.collective = true;
    i.run = [](Warp& warp, const Instruction& i, uint32_t) {
      const auto words = all<uint32_t>(warp, i[1]);
      const auto element = [&](int row, int column) {
        return words[row * 4 + column / 2] >> 16 * (column % 2) & 0xffff;
      };
      for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, k = lane % 4;
        put<uint32_t>(warp.at(i[0]), lane, element(2 * k, g) | element(2 * k + 1, g) << 16);
      }
    };
    return true;
  }
  if (mnemonic.name() != "ldmatrix") return false;
  i.collective = true;
  i.number = mnemonic.has("trans");
  i.run = [](Warp& warp, const Instruction& i, uint32_t) {
    const int count = i.groups[0];
    for (int m = 0; m < count; ++m) {
      uint16_t rows[8][8];
      for (int row = 0; row < 8; ++row) {
        std::memcpy(rows[row], warp.shared(warp.address(i, count, 0, 8 * m + row), 16), 16);
      }
      for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, k = lane % 4;
        const uint32_t low = i.number != 0 ? rows[2 * k][g] : rows[g][2 * k];
        const uint32_t high = i.number != 0 ? rows[2 * k + 1][g] : rows[g][2 * k + 1];
        put<uint32_t>(warp.at(i[static_cast<size_t>(m)]), lane, low | high << 16);
      }
    }
  };
  return true;
}

// Of blocks and clusters.
bool meetings(const Mnemonic& mnemonic, Instruction& i) {
  const std::string& name = mnemonic.name();
  if (name == "bar" && mnemonic.has("warp")) {
    i.collective = true;
    i.members = i.operands.at(0);
    i.run = [](Warp&, const Instruction&, uint32_t) {};
    return true;
  }
  if (name == "barrier" && mnemonic.has("cluster")) {
    i.collective = true;
    if (mnemonic.has("arrive")) {
      i.run = [](Warp& warp, const Instruction&, uint32_t) { ++warp.meetings; };
    } else {
      i.run = [](Warp& warp, const Instruction&, uint32_t) { warp.state = Warp::State::kAtClusterBarrier; };
    }
    return true;
  }
  if (name != "bar" && name != "barrier") return false;
  i.collective = true;
  if (mnemonic.has("red")) {
    // result, barrier, [threads,] predicate
    i.number = mnemonic.has("and") ? 'a' : mnemonic.has("or") ? 'o' : 'p';
    i.run = [](Warp& warp, const Instruction& i, uint32_t) {
      const uint32_t expected = i.operands.size() > 3 ? get<uint32_t>(warp.at(i[2]), 0) : 0;
      warp.block.arrive(warp, i, get<int>(warp.at(i[1]), 0), expected, warp.predicate(i.operands.back()));
    };
    return true;
  }
  if (!mnemonic.has("sync")) return false;
  i.run = [](Warp& warp, const Instruction& i, uint32_t) {
    const int lane = std::countr_zero(warp.lanes());
    const uint32_t expected = i.operands.size() > 1 ? get<uint32_t>(warp.at(i[1]), lane) : 0;
    warp.block.arrive(warp, i, get<int>(warp.at(i[0]), lane), expected, 0);
  };
  return true;
}

}  // namespace

bool decode_warp(const Mnemonic& mnemonic, Instruction& i) {
  return shuffles(mnemonic, i) || votes(mnemonic, i) || reductions(mnemonic, i) || products(mnemonic, i) ||
         matrices(mnemonic, i) || meetings(mnemonic, i);
}

void decode(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() == "ret") {
    i.flow = Flow::kReturn;
  } else if (mnemonic.name() == "exit") {
    i.flow = Flow::kExit;
  } else if (!decode_memory(mnemonic, i) && !decode_warp(mnemonic, i) && !decode_conversion(mnemonic, i) &&
             !decode_arithmetic(mnemonic, i)) {
    throw Fault("the emulator does not know it");
  }
}

}  // namespace emulator
