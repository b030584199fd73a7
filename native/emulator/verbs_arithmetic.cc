#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <tuple>
#include <type_traits>

#include "verbs.h"

namespace emulator {
namespace {

// Numbers too small to be normal are 0 where an instruction says so.
float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

// What is no number has one form on the device.
template <class T>
T one_nan(T x) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr Bits kBits = sizeof(T) == 4 ? 0x7fffffff : Bits(0xfff8) << (8 * sizeof(T) - 16);
  return x != x ? std::bit_cast<T>(kBits) : x;
}

// With that rounding, or the usual one.
template <class Result, class... Sources, class Function>
bool rounded(const Mnemonic& mnemonic, Instruction& instruction, Function function) {
  lanewise<Result, Sources...>(instruction, function);
  const int mode = mnemonic.has("rz")   ? FE_TOWARDZERO
                   : mnemonic.has("rm") ? FE_DOWNWARD
                   : mnemonic.has("rp") ? FE_UPWARD
                                        : FE_TONEAREST;
  if (mode == FE_TONEAREST) return true;
  instruction.number = mode;
  instruction.run = [](Warp& warp, const Instruction& instruction, uint32_t lanes) {
    std::fesetround(static_cast<int>(instruction.number));
    [&]<size_t... I>(std::index_sequence<I...>) {
      for_lanes(lanes, [&](int lane) {
        const std::tuple<Sources...> sources = {get<Sources>(warp.at(instruction[1 + I]), lane)...};
        volatile Result result = Function{}(std::get<I>(sources)...);
        put<Result>(warp.at(instruction[0]), lane, result);
      });
    }
    (std::index_sequence_for<Sources...>());
    std::fesetround(FE_TONEAREST);
  };
  return true;
}

template <class T>
T least(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (a == b) return std::signbit(a) ? a : b;
    return std::isnan(a) ? b : std::isnan(b) ? a : a < b ? a : b;
  } else {
    return a < b ? a : b;
  }
}
template <class T>
T greatest(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (a == b) return std::signbit(a) ? b : a;
    return std::isnan(a) ? b : std::isnan(b) ? a : a > b ? a : b;
  } else {
    return a > b ? a : b;
  }
}

template <class T>
using Unsigned = std::make_unsigned_t<T>;
template <class T>
using Wide =
    std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
                       std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                                          std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>>>;

// Whole numbers wrap around.
template <class T>
T times(T a, T b) {
  if constexpr (sizeof(T) < 4) {
    return static_cast<T>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
  } else {
    return static_cast<T>(static_cast<Unsigned<T>>(a) * static_cast<Unsigned<T>>(b));
  }
}
template <class T>
T plus(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
}
template <class T>
T minus(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
}
template <class T>
T high_product(T a, T b) {
  return static_cast<T>((static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >> (8 * sizeof(T)));
}

bool integers(const Mnemonic& mnemonic, Instruction& i) {
  const std::string& name = mnemonic.name();
  if (mnemonic.has("sat")) return false;
  return with_integer(mnemonic.last(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (name == "add") return lanewise<T, T, T>(i, [](T a, T b) { return plus(a, b); });
    if (name == "sub") return lanewise<T, T, T>(i, [](T a, T b) { return minus(a, b); });
    if (name == "min") return lanewise<T, T, T>(i, [](T a, T b) { return least(a, b); });
    if (name == "max") return lanewise<T, T, T>(i, [](T a, T b) { return greatest(a, b); });
    if (name == "neg") return lanewise<T, T>(i, [](T a) { return minus(T(0), a); });
    if (name == "abs") return lanewise<T, T>(i, [](T a) { return a < T(0) ? minus(T(0), a) : a; });
    if (name == "and") return lanewise<T, T, T>(i, [](T a, T b) { return a & b; });
    if (name == "or") return lanewise<T, T, T>(i, [](T a, T b) { return a | b; });
    if (name == "xor") return lanewise<T, T, T>(i, [](T a, T b) { return a ^ b; });
    if (name == "not") return lanewise<T, T>(i, [](T a) { return ~a; });
    if (name == "shl") {
      return lanewise<T, T, uint32_t>(i, [](T a, uint32_t b) {
        return b >= 8 * sizeof(T) ? T(0) : static_cast<T>(static_cast<Unsigned<T>>(a) << b);
      });
    }
    if (name == "shr") {
      return lanewise<T, T, uint32_t>(i, [](T a, uint32_t b) {
        return b < 8 * sizeof(T) ? static_cast<T>(a >> b) : std::is_signed_v<T> && a < T(0) ? T(-1) : T(0);
      });
    }
    if (name == "mul" && mnemonic.has("lo")) return lanewise<T, T, T>(i, [](T a, T b) { return times(a, b); });
    if (name == "mul" && mnemonic.has("hi")) return lanewise<T, T, T>(i, [](T a, T b) { return high_product(a, b); });
    if (name == "mad" && mnemonic.has("lo") && !mnemonic.has("cc")) {
      return lanewise<T, T, T, T>(i, [](T a, T b, T c) { return plus(times(a, b), c); });
    }
    if constexpr (sizeof(T) < 8) {
      using W = Wide<T>;
      if (name == "mul" && mnemonic.has("wide")) {
        return lanewise<W, T, T>(i, [](T a, T b) { return static_cast<W>(a) * static_cast<W>(b); });
      }
      if (name == "mad" && mnemonic.has("wide")) {
        return lanewise<W, T, T, W>(i, [](T a, T b, W c) { return plus(static_cast<W>(a) * static_cast<W>(b), c); });
      }
    }
    // As the device: whatever, where the divisor is 0.
    constexpr T kNone = static_cast<T>(-1);
    if (name == "div") {
      return lanewise<T, T, T>(i, [](T a, T b) {
        return b == 0 ? kNone : std::is_signed_v<T> && b == kNone ? minus(T(0), a) : static_cast<T>(a / b);
      });
    }
    if (name == "rem") {
      return lanewise<T, T, T>(i, [](T a, T b) {
        return b == 0 ? a : std::is_signed_v<T> && b == kNone ? T(0) : static_cast<T>(a % b);
      });
    }
    if constexpr (sizeof(T) >= 4 && std::is_unsigned_v<T>) {
      if (name == "bfi") {
        return lanewise<T, T, T, uint32_t, uint32_t>(i, [](T a, T b, uint32_t from, uint32_t count) {
          from &= 255, count &= 255;
          if (from >= 8 * sizeof(T) || count == 0) return b;
          const T ones = count >= 8 * sizeof(T) ? ~T(0) : (T(1) << count) - 1;
          return (b & ~(ones << from)) | (a & ones) << from;
        });
      }
      if (name == "popc") return lanewise<uint32_t, T>(i, [](T a) { return std::popcount(a); });
      if (name == "clz") return lanewise<uint32_t, T>(i, [](T a) { return std::countl_zero(a); });
      if (name == "bfind") {
        if (mnemonic.has("shiftamt"))
          return lanewise<uint32_t, T>(i, [](T a) { return a == 0 ? -1 : std::countl_zero(a); });
        return lanewise<uint32_t, T>(i, [](T a) { return static_cast<int>(8 * sizeof(T)) - 1 - std::countl_zero(a); });
      }
      if (name == "brev") {
        return lanewise<T, T>(i, [](T a) {
          T b = 0;
          for (size_t k = 0; k < 8 * sizeof(T); ++k) b |= (a >> k & 1) << (8 * sizeof(T) - 1 - k);
          return b;
        });
      }
    }
    return false;
  });
}

// Bytes of a and b by the nibbles of c; with the high bit of a nibble, only the sign of the byte.
uint32_t permuted(uint32_t a, uint32_t b, uint32_t c) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t choice = c >> 4 * k & 15;
    uint32_t byte = bytes >> 8 * (choice & 7) & 255;
    if ((choice & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
    result |= byte << 8 * k;
  }
  return result;
}

// Sums of 32 bits of which a later instruction takes the carry: of each lane a bit.
template <class Function>
bool with_carry(const Mnemonic& mnemonic, Instruction& i, Function) {
  i.number = mnemonic.has("cc");
  i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
    uint32_t carry = 0;
    for_lanes(lanes, [&](int lane) {
      uint32_t sources[3] = {};
      for (size_t k = 1; k < i.operands.size(); ++k) sources[k - 1] = get<uint32_t>(warp.at(i[k]), lane);
      const uint64_t sum = Function{}(sources[0], sources[1], sources[2], warp.carry >> lane & 1);
      put<uint32_t>(warp.at(i[0]), lane, static_cast<uint32_t>(sum));
      carry |= static_cast<uint32_t>(sum >> 32 & 1) << lane;
    });
    if (i.number != 0) warp.carry = (warp.carry & ~lanes) | carry;
  };
  return true;
}

bool carries(const Mnemonic& mnemonic, Instruction& i) {
  using U = uint32_t;
  using Sum = uint64_t;
  const std::string& name = mnemonic.name();
  const bool gives = mnemonic.has("cc");
  if (mnemonic.last() != "u32" && mnemonic.last() != "s32") return false;
  if (name == "add" && gives) return with_carry(mnemonic, i, [](U a, U b, U, U) { return Sum{a} + b; });
  if (name == "addc") return with_carry(mnemonic, i, [](U a, U b, U, U carry) { return Sum{a} + b + carry; });
  if (name == "sub" && gives) return with_carry(mnemonic, i, [](U a, U b, U, U) { return Sum{a} - b; });
  if (name == "subc") return with_carry(mnemonic, i, [](U a, U b, U, U borrow) { return Sum{a} - b - borrow; });
  if (mnemonic.last() != "u32") return false;
  if (name == "mad" && gives && mnemonic.has("lo")) {
    return with_carry(mnemonic, i, [](U a, U b, U c, U) { return Sum{U(Sum{a} * b)} + c; });
  }
  if (name == "madc" && mnemonic.has("lo")) {
    return with_carry(mnemonic, i, [](U a, U b, U c, U carry) { return Sum{U(Sum{a} * b)} + c + carry; });
  }
  if (name == "mad" && gives && mnemonic.has("hi")) {
    return with_carry(mnemonic, i, [](U a, U b, U c, U) { return (Sum{a} * b >> 32) + c; });
  }
  if (name == "madc" && mnemonic.has("hi")) {
    return with_carry(mnemonic, i, [](U a, U b, U c, U carry) { return (Sum{a} * b >> 32) + c + carry; });
  }
  return false;
}

// On both halves of words.
template <class Function>
uint32_t by_halves(Function function, auto... words) {
  const auto low = static_cast<uint16_t>(function(static_cast<uint16_t>(words)...));
  const auto high = static_cast<uint16_t>(function(static_cast<uint16_t>(words >> 16)...));
  return low | uint32_t{high} << 16;
}

// Whether all that it says beside its name is among these.
bool says_only(const Mnemonic& mnemonic, const std::set<std::string>& known) {
  return std::all_of(mnemonic.parts.begin() + 1, mnemonic.parts.end(),
                     [&](const auto& part) { return known.count(part); });
}

// Pairs of float16. A product and a sum of products are exact in double, and rounded once.
bool pairs(const Mnemonic& mnemonic, Instruction& i) {
  using U = uint32_t;
  using H = uint16_t;
  const std::string& name = mnemonic.name();
  if (mnemonic.last() != "f16x2" || (name != "set" && !says_only(mnemonic, {"rn", "NaN", "f16x2"}))) return false;
  const auto two = [&](auto function) {
    return lanewise<U, U, U>(i, [](U a, U b) {
      return by_halves([](H x, H y) { return to_half(decltype(function){}(from_half(x), from_half(y))); }, a, b);
    });
  };
  if (name == "add") return two([](float a, float b) { return a + b; });
  if (name == "sub") return two([](float a, float b) { return a - b; });
  if (name == "mul") return two([](float a, float b) { return a * b; });
  if (mnemonic.has("NaN")) {  // which is the result, too
    if (name == "min") return two([](float a, float b) { return a != a || b != b ? a + b : least(a, b); });
    if (name == "max") return two([](float a, float b) { return a != a || b != b ? a + b : greatest(a, b); });
    return false;
  }
  if (name == "min") return two([](float a, float b) { return least(a, b); });
  if (name == "max") return two([](float a, float b) { return greatest(a, b); });
  // Comparisons leave all bits of a half set, or none.
  const auto mask = [&](auto function) {
    return lanewise<U, U, U>(i, [](U a, U b) {
      return by_halves([](H x, H y) { return decltype(function){}(from_half(x), from_half(y)) ? 0xffff : 0; }, a, b);
    });
  };
  if (name == "set" && mnemonic.before_last() == "f16x2" && mnemonic.parts[1] == "eq") {
    return two([](float a, float b) { return a == b ? 1.0f : 0.0f; });
  }
  if (name == "set" && mnemonic.before_last() == "u32") {
    const std::string& how = mnemonic.parts[1];
    if (how == "eq") return mask([](float a, float b) { return a == b; });
    if (how == "ne") return mask([](float a, float b) { return a < b || a > b; });
    if (how == "lt") return mask([](float a, float b) { return a < b; });
    if (how == "le") return mask([](float a, float b) { return a <= b; });
    if (how == "gt") return mask([](float a, float b) { return a > b; });
    if (how == "ge") return mask([](float a, float b) { return a >= b; });
  }
  if (name == "abs") return lanewise<U, U>(i, [](U a) { return a & 0x7fff7fff; });
  if (name == "neg") return lanewise<U, U>(i, [](U a) { return a ^ 0x80008000; });
  if (name == "fma") {
    return lanewise<U, U, U, U>(i, [](U a, U b, U c) {
      return by_halves(
          [](H x, H y, H z) {
            const double exact = static_cast<double>(from_half(x)) * from_half(y) + from_half(z);
            return std::bit_cast<H>(static_cast<Half>(exact));
          },
          a, b, c);
    });
  }
  return false;
}

bool words(const Mnemonic& mnemonic, Instruction& i) {
  using U = uint32_t;
  const std::string &name = mnemonic.name(), &type = mnemonic.last();
  if (name == "prmt" && mnemonic.parts.size() == 2) {
    return lanewise<U, U, U, U>(i, [](U a, U b, U c) { return permuted(a, b, c); });
  }
  if (name == "shf") {  // of {b, a} as one number
    if (mnemonic.has("l") && mnemonic.has("wrap")) {
      return lanewise<U, U, U, U>(i, [](U a, U b, U c) { return c & 31 ? b << (c & 31) | a >> (32 - (c & 31)) : b; });
    }
    if (mnemonic.has("r") && mnemonic.has("wrap")) {
      return lanewise<U, U, U, U>(i, [](U a, U b, U c) { return c & 31 ? b << (32 - (c & 31)) | a >> (c & 31) : a; });
    }
    if (mnemonic.has("l")) {
      return lanewise<U, U, U, U>(i,
                                  [](U a, U b, U c) { return U((uint64_t{b} << 32 | a) << std::min(c, 32u) >> 32); });
    }
    return lanewise<U, U, U, U>(i, [](U a, U b, U c) { return U((uint64_t{b} << 32 | a) >> std::min(c, 32u)); });
  }
  if (name == "lop3") {
    return lanewise<U, U, U, U, U>(i, [](U a, U b, U c, U table) {
      U result = 0;
      for (U k = 0; k < 8; ++k) {
        if ((table >> k & 1) != 0) result |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
      }
      return result;
    });
  }
  if (name == "dp4a" && mnemonic.before_last() == "s32" && type == "s32") {
    return lanewise<int32_t, U, U, int32_t>(i, [](U a, U b, int32_t c) {
      for (int k = 0; k < 32; k += 8) c += static_cast<int8_t>(a >> k) * static_cast<int8_t>(b >> k);
      return c;
    });
  }
  if (name == "add" && type == "u16x2") {
    return lanewise<U, U, U>(i, [](U a, U b) { return by_halves([](int x, int y) { return x + y; }, a, b); });
  }
  if (name == "copysign" && type == "f32") {  // with the sign of the first
    return lanewise<float, float, float>(i, [](float a, float b) { return std::copysign(b, a); });
  }
  return false;
}

bool approximate(const Mnemonic& mnemonic, Instruction& i) {
  const std::string& name = mnemonic.name();
  if (mnemonic.last() != "f32" || !(mnemonic.has("approx") || mnemonic.has("full"))) return false;
  if (name == "div") return lanewise<float, float, float>(i, [](float a, float b) { return a / b; });
  if (mnemonic.has("ftz")) {
    if (name == "ex2") return lanewise<float, float>(i, [](float a) { return flushed(std::exp2(flushed(a))); });
    if (name == "rcp") return lanewise<float, float>(i, [](float a) { return flushed(1.0f / flushed(a)); });
    return false;
  }
  if (name == "ex2") return lanewise<float, float>(i, [](float a) { return std::exp2(a); });
  if (name == "lg2") return lanewise<float, float>(i, [](float a) { return std::log2(a); });
  if (name == "sin") return lanewise<float, float>(i, [](float a) { return std::sin(a); });
  if (name == "cos") return lanewise<float, float>(i, [](float a) { return std::cos(a); });
  if (name == "tanh") return lanewise<float, float>(i, [](float a) { return std::tanh(a); });
  if (name == "rcp") return lanewise<float, float>(i, [](float a) { return 1.0f / a; });
  if (name == "sqrt") return lanewise<float, float>(i, [](float a) { return std::sqrt(a); });
  if (name == "rsqrt") return lanewise<float, float>(i, [](float a) { return 1.0f / std::sqrt(a); });
  return false;
}

bool floats(const Mnemonic& mnemonic, Instruction& i) {
  if (!says_only(mnemonic, {"rn", "rz", "rm", "rp", "NaN", "f32", "f64"})) return false;
  const std::string& name = mnemonic.name();
  return with_float(mnemonic.last(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (name == "add") return rounded<T, T, T>(mnemonic, i, [](T a, T b) { return one_nan(a + b); });
    if (name == "sub") return rounded<T, T, T>(mnemonic, i, [](T a, T b) { return one_nan(a - b); });
    if (name == "mul") return rounded<T, T, T>(mnemonic, i, [](T a, T b) { return one_nan(a * b); });
    if (name == "div") return rounded<T, T, T>(mnemonic, i, [](T a, T b) { return one_nan(a / b); });
    if (name == "fma")
      return rounded<T, T, T, T>(mnemonic, i, [](T a, T b, T c) { return one_nan(std::fma(a, b, c)); });
    if (name == "rcp") return rounded<T, T>(mnemonic, i, [](T a) { return one_nan(T(1) / a); });
    if (name == "sqrt") return rounded<T, T>(mnemonic, i, [](T a) { return one_nan(std::sqrt(a)); });
    if (mnemonic.has("NaN")) {  // which is the result, too
      if (name == "min")
        return lanewise<T, T, T>(i, [](T a, T b) { return one_nan(a != a || b != b ? a + b : least(a, b)); });
      if (name == "max") {
        return lanewise<T, T, T>(i, [](T a, T b) { return one_nan(a != a || b != b ? a + b : greatest(a, b)); });
      }
      return false;
    }
    if (name == "min") return lanewise<T, T, T>(i, [](T a, T b) { return one_nan(least(a, b)); });
    if (name == "max") return lanewise<T, T, T>(i, [](T a, T b) { return one_nan(greatest(a, b)); });
    if (name == "neg") return lanewise<T, T>(i, [](T a) { return -a; });
    if (name == "abs") return lanewise<T, T>(i, [](T a) { return std::fabs(a); });
    return false;
  });
}

// A bit for each lane.
template <class T, class Function>
bool compare(Instruction& i, Function) {
  const size_t results = i.groups.at(0);
  i.number = static_cast<int64_t>(results);
  require_lanes<T>(i, results);
  require_lanes<T>(i, results + 1);
  if (i.operands.size() != results + 2) throw Fault("a comparison with more to it");
  i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
    const auto first = static_cast<size_t>(i.number);
    const uint8_t *const a = warp.at(i[first]), *const b = warp.at(i[first + 1]);
    uint32_t bits = 0;
    for_lanes(lanes, [&](int lane) { bits |= uint32_t{Function{}(get<T>(a, lane), get<T>(b, lane))} << lane; });
    warp.set_predicate(i[0], lanes, bits);
    if (first == 2) warp.set_predicate(i[1], lanes, ~bits);
  };
  return true;
}

bool comparisons(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() != "setp" || mnemonic.parts.size() != 3) return false;
  const std::string& how = mnemonic.parts[1];
  return with_number(mnemonic.last(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (how == "eq") return compare<T>(i, [](T a, T b) { return a == b; });
    if (how == "ne") return compare<T>(i, [](T a, T b) { return a < b || a > b; });
    if (how == "lt" || how == "lo") return compare<T>(i, [](T a, T b) { return a < b; });
    if (how == "le" || how == "ls") return compare<T>(i, [](T a, T b) { return a <= b; });
    if (how == "gt" || how == "hi") return compare<T>(i, [](T a, T b) { return a > b; });
    if (how == "ge" || how == "hs") return compare<T>(i, [](T a, T b) { return a >= b; });
    // Or either is no number.
    if (how == "equ") return compare<T>(i, [](T a, T b) { return !(a < b || a > b); });
    if (how == "neu") return compare<T>(i, [](T a, T b) { return !(a == b); });
    if (how == "ltu") return compare<T>(i, [](T a, T b) { return !(a >= b); });
    if (how == "leu") return compare<T>(i, [](T a, T b) { return !(a > b); });
    if (how == "gtu") return compare<T>(i, [](T a, T b) { return !(a <= b); });
    if (how == "geu") return compare<T>(i, [](T a, T b) { return !(a < b); });
    if (how == "num") return compare<T>(i, [](T a, T b) { return a == a && b == b; });
    if (how == "nan") return compare<T>(i, [](T a, T b) { return a != a || b != b; });
    return false;
  });
}

template <class Function>
bool of_predicates(Instruction& i, Function) {
  i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
    const uint32_t a = warp.predicate(i[1]), b = i.operands.size() > 2 ? warp.predicate(i[2]) : 0;
    warp.set_predicate(i[0], lanes, Function{}(a, b));
  };
  return true;
}

bool predicates(const Mnemonic& mnemonic, Instruction& i) {
  const std::string& name = mnemonic.name();
  if (name == "selp") {
    if (i.operands.at(3).bank != Operand::Bank::kPredicates) throw Fault("a choice by what is no predicate");
    const auto choose = [&](auto tag) {
      using T = typename decltype(tag)::Type;
      for (size_t k = 0; k < 3; ++k) require_lanes<T>(i, k);
      i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
        const uint32_t yes = warp.predicate(i[3]);
        uint8_t *const result = warp.at(i[0]), *const a = warp.at(i[1]), *const b = warp.at(i[2]);
        for_lanes(lanes, [&](int lane) { put<T>(result, lane, get<T>((yes >> lane & 1) != 0 ? a : b, lane)); });
      };
      return true;
    };
    return mnemonic.last().ends_with("64") ? choose(Tag<uint64_t>()) : choose(Tag<uint32_t>());
  }
  if (mnemonic.last() != "pred") return false;
  if (name == "and") return of_predicates(i, [](uint32_t a, uint32_t b) { return a & b; });
  if (name == "or") return of_predicates(i, [](uint32_t a, uint32_t b) { return a | b; });
  if (name == "xor") return of_predicates(i, [](uint32_t a, uint32_t b) { return a ^ b; });
  if (name == "not") return of_predicates(i, [](uint32_t a, uint32_t) { return ~a; });
  if (name == "mov" && i.operands.at(1).bank == Operand::Bank::kPredicates) {
    return of_predicates(i, [](uint32_t a, uint32_t) { return a; });
  }
  if (name == "mov") {
    i.run = [](Warp& warp, const Instruction& i, uint32_t lanes) {
      warp.set_predicate(i[0], lanes, get<uint32_t>(warp.at(i[1]), 0) != 0 ? ~0u : 0);
    };
    return true;
  }
  return false;
}

}  // namespace

bool decode_arithmetic(const Mnemonic& mnemonic, Instruction& i) {
  return predicates(mnemonic, i) || comparisons(mnemonic, i) || carries(mnemonic, i) || approximate(mnemonic, i) ||
         words(mnemonic, i) || pairs(mnemonic, i) || (!mnemonic.has("cc") && integers(mnemonic, i)) ||
         floats(mnemonic, i);
}

}  // namespace emulator
