// Rows between input, staging, window and float32: rounding, scaling, refusals, and that nothing else is written.
#include "kernels/cuda/rows/rows.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "pages/page_case.h"
#include "reference/half.h"

namespace {

using namespace kvasir::cuda;
using page_case::bfloat_bits;
using page_case::Buffer;
using page_case::bytes_of;
using page_case::TypedNumbers;

constexpr float kMost = 32752.0f;

TypedNumbers make_input(int64_t count, kvasir::ElementType type, unsigned seed, float most = kMost) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers;
  for (int64_t i = 0; i < count; ++i) {
    float x = normal(random) * std::exp2(static_cast<float>(random() % 40) - 26.0f);  // down to subnormal float16
    if (random() % 16 == 0) x = random() % 2 ? most : -most;
    if (random() % 16 == 0) x = random() % 2 ? 0.0f : -0.0f;
    if (random() % 16 == 0) x = (static_cast<float>(random() % 4096) + 0.5f) / 2048.0f;  // ties of float16
    if (std::fabs(x) > most) x = most;
    numbers.push_back(x);
  }
  return page_case::typed(std::move(numbers), type);
}

// The float16 bits that an element is stored as.
uint16_t stored(float x, float factor) {
  const float scaled = x / factor;
  const uint16_t bits = reference::half_nearest(std::fabs(scaled));
  return static_cast<uint16_t>(bits | (std::signbit(scaled) ? 0x8000 : 0));
}

void put(std::vector<uint8_t>& bytes, size_t at, uint16_t value) { std::memcpy(bytes.data() + at, &value, 2); }

// Blocks of rows in one piece of memory, the last one first: nothing but the list finds them.
struct Blocks {
  RowShape shape;
  int64_t count;

  static Blocks of(const RowShape& shape, int64_t rows) { return {shape, rows / kTileSize + 2}; }
  size_t block_bytes() const { return static_cast<size_t>(shape.kv_heads) * RowTileLayout{shape.head_dim}.bytes(); }
  size_t bytes() const { return static_cast<size_t>(count) * block_bytes(); }
  size_t offset(int64_t block) const { return static_cast<size_t>(count - 1 - block) * block_bytes(); }
  std::vector<uint8_t*> list(uint8_t* memory) const {
    std::vector<uint8_t*> blocks;
    for (int64_t i = 0; i < count; ++i) blocks.push_back(memory + offset(i));
    return blocks;
  }
  size_t byte(int side, int64_t row, int head, int channel) const {
    const RowTileLayout tile = {shape.head_dim};
    const int token = static_cast<int>(row % kTileSize);
    return offset(row / kTileSize) +
           static_cast<size_t>(head * tile.bytes() +
                               (side == 0 ? tile.key_byte(token, channel) : tile.value_byte(token, channel)));
  }
};

// Calls visit(side, token, head, channel, index into [tokens][heads][d]).
template <class Visit>
void for_elements(const RowShape& shape, int64_t tokens, const Visit& visit) {
  for (int side = 0; side < 2; ++side) {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int h = 0; h < shape.kv_heads; ++h) {
        for (int c = 0; c < shape.head_dim; ++c) {
          visit(side, t, h, c, static_cast<size_t>((t * shape.kv_heads + h) * shape.head_dim + c));
        }
      }
    }
  }
}

// [tokens][heads][d] as [heads][tokens][d].
std::vector<uint8_t> heads_first(const std::vector<uint8_t>& bytes, const RowShape& shape, int64_t tokens) {
  const size_t row = bytes.size() / static_cast<size_t>(tokens * shape.kv_heads);
  std::vector<uint8_t> turned(bytes.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int h = 0; h < shape.kv_heads; ++h) {
      const auto from = static_cast<size_t>(t * shape.kv_heads + h), to = static_cast<size_t>(h * tokens + t);
      std::memcpy(turned.data() + to * row, bytes.data() + from * row, row);
    }
  }
  return turned;
}

struct Place {
  const char* name;
  RowShape shape;
  int64_t tokens;
  int64_t row;
};

const Place kPlaces[] = {
    {"one token", {8, 128}, 1, 37}, {"a few", {3, 96}, 21, 13},    {"odd head dim", {2, 80}, 40, 5},
    {"widest", {2, 256}, 33, 16},   {"narrowest", {5, 32}, 17, 0}, {"many", {1, 64}, 9000, 3},
};

void check_append(const Place& place, kvasir::ElementType key_type, kvasir::ElementType value_type, bool scaled) {
  const RowShape& shape = place.shape;
  const int64_t row_elements = int64_t{shape.kv_heads} * shape.head_dim;
  const int64_t first = 2;  // rows of the input that stay out
  const TypedNumbers inputs[2] = {
      make_input((first + place.tokens) * row_elements, key_type, 1, scaled ? 8000.0f : kMost),
      make_input((first + place.tokens) * row_elements, value_type, 2)};
  std::mt19937 random(3);
  std::vector<float> factors;
  for (int64_t i = 0; i < row_elements; ++i) factors.push_back(0.25f + static_cast<float>(random() % 1000) / 37.0f);
  const Buffer keys(inputs[0].bytes), values(inputs[1].bytes), scaling(bytes_of(factors)), refused(8, 0);
  const InputRows rows = {{keys.data(), values.data()},
                          {key_type, value_type},
                          first + place.tokens,
                          scaled ? scaling.as<float>() : nullptr,
                          refused.as<uint32_t>(),
                          {},
                          {}};

  const Blocks blocks = Blocks::of(shape, place.row + place.tokens);
  const Buffer window(blocks.bytes());
  CUDA(append_rows(shape, rows, first, place.tokens, blocks.list(window.data()).data(), place.row, nullptr));
  const int64_t staging_rows = place.row + place.tokens + 3;
  const size_t side_bytes = static_cast<size_t>(staging_rows * row_elements * 2);
  const Buffer staged(2 * side_bytes);
  const Staging staging = {{staged.as<uint16_t>(), reinterpret_cast<uint16_t*>(staged.data() + side_bytes)},
                           staging_rows};
  CUDA(stage_rows(shape, rows, first, place.tokens, staging, place.row, nullptr));

  // The same one by one, in any order, from rows that lie heads first.
  const Buffer turned_keys(heads_first(inputs[0].bytes, shape, first + place.tokens));
  const Buffer turned_values(heads_first(inputs[1].bytes, shape, first + place.tokens));
  InputRows turned = rows;
  turned.sides[0] = turned_keys.data();
  turned.sides[1] = turned_values.data();
  for (int side = 0; side < 2; ++side) {
    turned.token_strides[side] = shape.head_dim;
    turned.head_strides[side] = (first + place.tokens) * shape.head_dim;
  }
  const Buffer other_window(blocks.bytes());
  const std::vector<uint8_t*> list = blocks.list(other_window.data());
  std::vector<RowMove> moves;
  for (int64_t t = place.tokens - 1; t >= 0; --t) {
    const int64_t row = place.row + t;
    moves.push_back({list[static_cast<size_t>(row / kTileSize)], static_cast<int32_t>(row % kTileSize),
                     static_cast<int32_t>(first + t)});
  }
  const Buffer moves_there(bytes_of(moves));
  CUDA(append_listed_rows(shape, turned, moves_there.as<RowMove>(), place.tokens, nullptr));
  CUDA(cudaDeviceSynchronize());

  std::vector<uint8_t> tiles(blocks.bytes(), 0xa5), lines(2 * side_bytes, 0xa5);
  for_elements(shape, place.tokens, [&](int side, int64_t t, int h, int c, size_t index) {
    const float x = inputs[side].numbers[index + static_cast<size_t>(first * row_elements)];
    const float factor = side == 0 && scaled ? factors[h * shape.head_dim + c] : 1.0f;
    const uint16_t bits = stored(x, factor);
    put(tiles, blocks.byte(side, place.row + t, h, c), bits);
    const size_t line = static_cast<size_t>((h * staging_rows + place.row + t) * shape.head_dim + c);
    put(lines, side * side_bytes + 2 * line, bits);
  });
  const std::string tiles_wrong = page_case::difference(window.read(), tiles);
  CHECK(tiles_wrong.empty(), place.name << " window: " << tiles_wrong);
  const std::string listed_wrong = page_case::difference(other_window.read(), tiles);
  CHECK(listed_wrong.empty(), place.name << " listed: " << listed_wrong);
  const std::string lines_wrong = page_case::difference(staged.read(), lines);
  CHECK(lines_wrong.empty(), place.name << " staging: " << lines_wrong);
  CHECK(refused.read() == std::vector<uint8_t>(8, 0), place.name << " refuses what is fine");
}

DEVICE_CASE("rows: append and stage round, scale and place every type") {
  for (const Place& place : kPlaces) {
    check_append(place, kvasir::ElementType::kFloat32, kvasir::ElementType::kFloat32, false);
    check_append(place, kvasir::ElementType::kFloat16, kvasir::ElementType::kBFloat16, false);
    check_append(place, kvasir::ElementType::kBFloat16, kvasir::ElementType::kFloat16, true);
    check_append(place, kvasir::ElementType::kFloat32, kvasir::ElementType::kBFloat16, true);
  }
}

DEVICE_CASE("rows: what is not finite or too large is refused and stored as 0") {
  const RowShape shape = {2, 64};
  const Blocks blocks = {shape, 1};
  const float bad[] = {NAN, INFINITY, -INFINITY, std::nextafter(kMost, 1e9f), -40000.0f};
  for (const float x : bad) {
    for (const int side : {0, 1}) {
      for (const kvasir::ElementType type : {kvasir::ElementType::kFloat32, kvasir::ElementType::kBFloat16}) {
        std::vector<float> numbers[2] = {std::vector<float>(3 * 128, 1.5f), std::vector<float>(3 * 128, 1.5f)};
        const size_t where = 2 * 128 + 64 + 37;
        numbers[side][where] = x;
        std::vector<uint16_t> narrow;
        for (const float n : numbers[side]) narrow.push_back(bfloat_bits(n));
        if (type == kvasir::ElementType::kBFloat16 && reference::bfloat_value(narrow[where]) == kMost) continue;
        if (type == kvasir::ElementType::kBFloat16 && std::fabs(reference::bfloat_value(narrow[where])) < kMost)
          continue;
        const bool wide = type == kvasir::ElementType::kFloat32;
        const Buffer changed(wide ? bytes_of(numbers[side]) : bytes_of(narrow)), other(bytes_of(numbers[1 - side]));
        const Buffer refused(8, 0), window(blocks.bytes(), 0);
        InputRows rows = {{other.data(), other.data()},
                          {kvasir::ElementType::kFloat32, kvasir::ElementType::kFloat32},
                          3,
                          nullptr,
                          refused.as<uint32_t>(),
                          {},
                          {}};
        rows.sides[side] = changed.data();
        rows.types[side] = type;
        CUDA(append_rows(shape, rows, 0, 3, blocks.list(window.data()).data(), 0, nullptr));
        CUDA(cudaDeviceSynchronize());
        uint32_t flags[2];
        std::memcpy(flags, refused.read().data(), 8);
        CHECK(flags[side] == 1 && flags[1 - side] == 0, x << " side " << side << ": " << flags[0] << " " << flags[1]);
        uint16_t bits;
        std::memcpy(&bits, window.read().data() + blocks.byte(side, 2, 1, 37), 2);
        CHECK(bits == 0, x << " stored as " << bits);
      }
    }
  }
  // Fine as it is, too large after division; and the reverse, which the host refuses as well.
  for (const float x : {20000.0f, 40000.0f}) {
    const Buffer keys(bytes_of(std::vector<float>(128, x))), values(bytes_of(std::vector<float>(128, 0.0f)));
    const Buffer scaling(bytes_of(std::vector<float>(128, x < kMost ? 0.5f : 4.0f)));
    const Buffer refused(8, 0), window(blocks.bytes(), 0);
    const InputRows rows = {{keys.data(), values.data()},
                            {kvasir::ElementType::kFloat32, kvasir::ElementType::kFloat32},
                            1,
                            scaling.as<float>(),
                            refused.as<uint32_t>(),
                            {},
                            {}};
    CUDA(append_rows(shape, rows, 0, 1, blocks.list(window.data()).data(), 0, nullptr));
    CUDA(cudaDeviceSynchronize());
    uint32_t flags[2];
    std::memcpy(flags, refused.read().data(), 8);
    CHECK(flags[0] == 1 && flags[1] == 0, x << ": " << flags[0] << " " << flags[1]);
  }
}

DEVICE_CASE("rows: window, staging and float32 rows hold the same") {
  for (const Place& place : kPlaces) {
    const RowShape& shape = place.shape;
    const Blocks blocks = Blocks::of(shape, place.row + place.tokens);
    const int64_t elements = place.tokens * shape.kv_heads * shape.head_dim;
    std::mt19937 random(7);
    std::vector<uint8_t> tiles(blocks.bytes(), 0xa5);
    std::vector<uint16_t> halves[2] = {std::vector<uint16_t>(elements), std::vector<uint16_t>(elements)};
    for_elements(shape, place.tokens, [&](int side, int64_t t, int h, int c, size_t index) {
      halves[side][index] = static_cast<uint16_t>(random() % 0x7800 | (random() % 2) << 15);
      put(tiles, blocks.byte(side, place.row + t, h, c), halves[side][index]);
    });
    const Buffer window(tiles);
    const std::vector<uint8_t*> list = blocks.list(window.data());
    const int64_t staging_rows = place.tokens + 9;
    const size_t side_bytes = static_cast<size_t>(staging_rows * shape.kv_heads * shape.head_dim * 2);
    const Buffer staged(2 * side_bytes);
    const Staging staging = {{staged.as<uint16_t>(), reinterpret_cast<uint16_t*>(staged.data() + side_bytes)},
                             staging_rows};
    CUDA(gather_rows(shape, list.data(), place.row, place.tokens, staging, 4, nullptr));
    const int64_t token_stride = int64_t{shape.kv_heads} * shape.head_dim;
    const Buffer keys(4 * elements), values(4 * elements), restored(tiles.size());
    FloatRows floats = {{keys.as<float>(), values.as<float>()}, token_stride, shape.head_dim};
    CUDA(read_rows(shape, list.data(), place.row, place.tokens, floats, nullptr));
    CUDA(restore_rows(shape, floats, place.tokens, blocks.list(restored.data()).data(), place.row, nullptr));
    CUDA(read_rows(shape, list.data(), place.row, place.tokens, {{nullptr, nullptr}, token_stride, shape.head_dim},
                   nullptr));
    CUDA(cudaDeviceSynchronize());

    std::vector<uint8_t> lines(2 * side_bytes, 0xa5);
    std::vector<float> expected[2] = {std::vector<float>(elements), std::vector<float>(elements)};
    for_elements(shape, place.tokens, [&](int side, int64_t t, int h, int c, size_t index) {
      const size_t line = static_cast<size_t>((h * staging_rows + 4 + t) * shape.head_dim + c);
      put(lines, side * side_bytes + 2 * line, halves[side][index]);
      expected[side][index] = static_cast<float>(reference::half_value(halves[side][index]));
    });
    CHECK(page_case::difference(staged.read(), lines).empty(), place.name << " staging");
    CHECK(page_case::difference(restored.read(), tiles).empty(), place.name << " restored");
    CHECK(page_case::difference(keys.read(), bytes_of(expected[0])).empty(), place.name << " keys");
    CHECK(page_case::difference(values.read(), bytes_of(expected[1])).empty(), place.name << " values");
  }
}

DEVICE_CASE("rows: restored rows are cut off at the greatest magnitude") {
  const RowShape shape = {1, 32};
  const RowTileLayout tile = {32};
  const Buffer rows(bytes_of(std::vector<float>(32, -33000.0f))), window(static_cast<size_t>(tile.bytes()), 0);
  CUDA(restore_rows(shape, {{rows.as<float>(), nullptr}, 32, 32}, 1, Blocks{shape, 1}.list(window.data()).data(), 3,
                    nullptr));
  CUDA(cudaDeviceSynchronize());
  const std::vector<uint8_t> got = window.read();
  for (int c = 0; c < 32; ++c) {
    uint16_t key, value;
    std::memcpy(&key, got.data() + tile.key_byte(3, c), 2);
    std::memcpy(&value, got.data() + tile.value_byte(3, c), 2);
    CHECK(key == reference::half_nearest(-kMost) && value == 0, c << ": " << key << " " << value);
  }
}

}  // namespace
