// What operating systems call by different names: memory at multiples of many bytes, pages that go back,
// and the ends of stacks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir {

// Uninitialised; null where there is none. `bytes` is a multiple of `alignment`, a power of two.
void* take_aligned(size_t alignment, size_t bytes) noexcept;
void give_back_aligned(void* memory) noexcept;

// Memory that will be written whole: large pages are there with far fewer faults. A wish.
void wish_large_pages(void* memory, size_t bytes) noexcept;

// Whole pages of the system in begin .. end go back; what lies in them is lost. Addresses stay.
void return_pages(uint8_t* begin, uint8_t* end) noexcept;

// Whether this thread's stack has so much left. True where the system does not say.
bool stack_has(size_t bytes) noexcept;

}  // namespace kvasir
