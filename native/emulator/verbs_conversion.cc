#include <cmath>
#include <limits>
#include <type_traits>

#include "verbs.h"

namespace emulator {

float from_bfloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
uint16_t to_bfloat(float value) {
  if (std::isnan(value)) return 0x7fff;
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

namespace {

// The least that is not below the value.
uint16_t to_half_above(float value) {
  const uint16_t nearest = to_half(value);
  if (!(from_half(nearest) < value)) return nearest;
  return (nearest & 0x8000) != 0 ? nearest - 1 : nearest + 1;
}

// To whole numbers what is beyond them is the nearest, and what is no number 0.
template <class Result, class Source>
Result to_integer(Source value) {
  if (std::isnan(value)) return 0;
  if (value <= static_cast<Source>(std::numeric_limits<Result>::min())) return std::numeric_limits<Result>::min();
  if (value >= static_cast<Source>(std::numeric_limits<Result>::max())) return std::numeric_limits<Result>::max();
  return static_cast<Result>(value);
}

template <class Result, class Source>
bool from_float(const Mnemonic& mnemonic, Instruction& i) {
  const auto to = [](auto value) {
    if constexpr (std::is_integral_v<Result>) {
      return to_integer<Result>(value);
    } else {
      return static_cast<Result>(value);
    }
  };
  if (mnemonic.has("rni"))
    return lanewise<Result, Source>(i, [](Source a) { return decltype(to){}(std::nearbyint(a)); });
  if (mnemonic.has("rzi")) return lanewise<Result, Source>(i, [](Source a) { return decltype(to){}(std::trunc(a)); });
  if (mnemonic.has("rmi")) return lanewise<Result, Source>(i, [](Source a) { return decltype(to){}(std::floor(a)); });
  if (mnemonic.has("rpi")) return lanewise<Result, Source>(i, [](Source a) { return decltype(to){}(std::ceil(a)); });
  if constexpr (std::is_floating_point_v<Result>) {
    if (mnemonic.has("sat")) {
      return lanewise<Result, Source>(
          i, [](Source a) { return a > 0 ? a < 1 ? static_cast<Result>(a) : Result(1) : Result(0); });
    }
    return lanewise<Result, Source>(i, [](Source a) { return static_cast<Result>(a); });
  }
  return false;
}

template <class Work>
bool with_any_integer(const std::string& type, const Work& work) {
  if (type == "s8") return work(Tag<int8_t>());
  if (type == "u8" || type == "b8") return work(Tag<uint8_t>());
  return with_integer(type, work);
}

// A whole number, from lanes of the width that it has there.
template <class Result, class Source>
bool from_integer(Instruction& i) {
  if constexpr (sizeof(Source) < 8) {
    if (i.operands.at(1).lane_bytes == 8) {
      return lanewise<Result, uint64_t>(i, [](uint64_t a) { return static_cast<Result>(static_cast<Source>(a)); });
    }
  }
  return lanewise<Result, Source>(i, [](Source a) { return static_cast<Result>(a); });
}

// Lanes that are wider than a result are filled with it, by its sign.
template <class Result>
bool wide_result(const Instruction& i) {
  return sizeof(Result) < 8 && i.operands.at(0).lane_bytes == 8;
}

}  // namespace

bool decode_conversion(const Mnemonic& mnemonic, Instruction& i) {
  if (mnemonic.name() != "cvt" || mnemonic.has("ftz")) return false;
  const std::string &from = mnemonic.last(), &to = mnemonic.before_last();
  if (mnemonic.has("rn") && from == "f32") {
    if (to == "f16") return lanewise<uint16_t, float>(i, [](float a) { return to_half(a); });
    if (to == "bf16") return lanewise<uint16_t, float>(i, [](float a) { return to_bfloat(a); });
    if (to == "f16x2") {
      return lanewise<uint32_t, float, float>(i,
                                              [](float a, float b) { return uint32_t{to_half(a)} << 16 | to_half(b); });
    }
    if (to == "bf16x2") {
      return lanewise<uint32_t, float, float>(
          i, [](float a, float b) { return uint32_t{to_bfloat(a)} << 16 | to_bfloat(b); });
    }
  }
  if (mnemonic.has("rp") && from == "f32" && to == "f16") {
    return lanewise<uint16_t, float>(i, [](float a) { return to_half_above(a); });
  }
  if (from == "f16" && to == "f32") return lanewise<float, uint16_t>(i, [](uint16_t a) { return from_half(a); });
  if (from == "bf16" && to == "f32") return lanewise<float, uint16_t>(i, [](uint16_t a) { return from_bfloat(a); });
  return with_float(from,
                    [&](auto source) {
                      using Source = typename decltype(source)::Type;
                      return with_number(to, [&](auto result) {
                        return from_float<typename decltype(result)::Type, Source>(mnemonic, i);
                      });
                    }) ||
         with_any_integer(from, [&](auto source) {
           using Source = typename decltype(source)::Type;
           const auto convert = [&](auto result) {
             using Result = typename decltype(result)::Type;
             if (wide_result<Result>(i)) throw Fault("a conversion to wider registers");
             return from_integer<Result, Source>(i);
           };
           return with_any_integer(to, convert) || with_float(to, convert);
         });
}

}  // namespace emulator
