// What all levels do alike for CommVQ: pages by their model. Included by the sources of every level, hence in a
// namespace without a name.
#pragma once

#include <cstdint>

#include "codecs/commvq/model.h"

namespace kvasir {
namespace commvq {
namespace {

inline const KeyModel& keys_of(const PageFormat& format) { return static_cast<const KeyModel&>(*format.model); }
inline const ValueModel& values_of(const PageFormat& format) { return static_cast<const ValueModel&>(*format.model); }

inline const PageBook& book_of(const PageFormat& format) { return static_cast<const PageBook&>(*format.model); }
inline void encode(const PageFormat& format, const float* rows, uint8_t* page) { book_of(format).encode(rows, page); }
inline void decode(const PageFormat& format, const uint8_t* page, float* rows) { book_of(format).decode(page, rows); }

}  // namespace
}  // namespace commvq
}  // namespace kvasir
