// The pool: accounting by kind and layer, budgets as hard limits, blocks that give themselves back.
#include "cache/pool.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "kvasir/error.h"
#include "support/data.h"
#include "support/doctest.h"
#include "support/effort.h"

using kvasir::Block;
using kvasir::BlockKind;
using kvasir::Pool;

namespace {

bool refused(Pool& pool, int layer, int64_t bytes) {
  try {
    pool.take(layer, BlockKind::kPage, bytes);
  } catch (const kvasir::Error& error) {
    CHECK(error.code() == kvasir::ErrorCode::kBudgetExceeded);
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("pool: blocks are aligned, counted by layer and kind, and given back once") {
  const auto pool = std::make_shared<Pool>(kvasir::host_arena(), 0, std::vector<int64_t>{0, 0});
  {
    Block page = pool->take(0, BlockKind::kPage, 100);
    Block window = pool->take(1, BlockKind::kRows, 1000);
    CHECK(reinterpret_cast<uintptr_t>(page.data()) % 64 == 0);
    CHECK(reinterpret_cast<uintptr_t>(window.data()) % 64 == 0);
    CHECK(pool->bytes() == 1100);
    CHECK(pool->usage(0, BlockKind::kPage).bytes == 100);
    CHECK(pool->usage(0, BlockKind::kPage).blocks == 1);
    CHECK(pool->usage(0, BlockKind::kRows).blocks == 0);
    CHECK(pool->usage(1, BlockKind::kRows).bytes == 1000);

    Block moved = std::move(page);
    CHECK(!page);
    CHECK(moved.bytes() == 100);
    CHECK(pool->bytes() == 1100);
    window = std::move(moved);  // frees the old window
    CHECK(pool->bytes() == 100);
    window.reset();
    window.reset();
    CHECK(pool->bytes() == 0);
  }
  CHECK(pool->bytes() == 0);
  CHECK(pool->peak_bytes() == 1100);
  CHECK(pool->usage(1, BlockKind::kRows).blocks == 0);
}

TEST_CASE("pool: a budget is filled to the last byte and not beyond") {
  const auto pool = std::make_shared<Pool>(kvasir::host_arena(), 1000, std::vector<int64_t>{0});
  Block most = pool->take(0, BlockKind::kPage, 999);
  CHECK(refused(*pool, 0, 2));
  CHECK(pool->bytes() == 999);
  Block last = pool->take(0, BlockKind::kPage, 1);
  CHECK(refused(*pool, 0, 1));
  most.reset();
  CHECK(!refused(*pool, 0, 999));
  CHECK(pool->peak_bytes() == 1000);
}

TEST_CASE("pool: layer budgets hold beside the total") {
  const auto pool = std::make_shared<Pool>(kvasir::host_arena(), 1000, std::vector<int64_t>{300, 0});
  Block a = pool->take(0, BlockKind::kPage, 200);
  Block b = pool->take(0, BlockKind::kRows, 100);
  CHECK(refused(*pool, 0, 1));
  Block c = pool->take(1, BlockKind::kPage, 700);
  CHECK(refused(*pool, 1, 1));
  CHECK(pool->bytes() == 1000);
}

TEST_CASE("pool: a reservation holds its bytes against others, and gives back what it did not use") {
  const auto pool = std::make_shared<Pool>(kvasir::host_arena(), 1000, std::vector<int64_t>{0, 800});
  Block kept;
  {
    Pool::Reservation reserved = pool->reserve(1, 700);
    CHECK(pool->bytes() == 700);
    CHECK(refused(*pool, 0, 301));
    CHECK(refused(*pool, 1, 101));  // the layer's own budget
    kept = reserved.take(BlockKind::kPage, 200);
    Block dropped = reserved.take(BlockKind::kRows, 100);
    CHECK(pool->bytes() == 700);
    CHECK(pool->usage(1, BlockKind::kPage).bytes == 200);
    CHECK(pool->usage(1, BlockKind::kRows).blocks == 1);
    dropped.reset();
    CHECK(pool->bytes() == 600);
    const Pool::Reservation moved = std::move(reserved);
    CHECK(pool->bytes() == 600);
  }
  CHECK(pool->bytes() == 200);
  CHECK(pool->usage(1, BlockKind::kRows).blocks == 0);
  kept.reset();
  CHECK(pool->bytes() == 0);
  CHECK_THROWS_AS(pool->reserve(1, 801), kvasir::Error);
  CHECK_THROWS_AS(pool->reserve(0, 1001), kvasir::Error);
  CHECK(pool->bytes() == 0);
}

TEST_CASE("pool: what a promise lends is counted until it is paid back, and again where a draw is undone") {
  const auto pool = std::make_shared<Pool>(kvasir::host_arena(), 1000, std::vector<int64_t>{0, 0});
  {
    Pool::Reservation promise = pool->reserve(1, 600);
    {
      Pool::Reservation page = pool->reserve(1, 0);
      page.draw(promise, 400, 0);
      promise.lend(300);
    }
    CHECK(promise.left() == 200);
    CHECK(pool->bytes() == 200);
    CHECK(pool->lent() == 300);
    CHECK(pool->lent(1) == 300);
    CHECK(pool->lent(0) == 0);
    {
      Pool::Reservation rows = pool->reserve(1, 100);
      rows.draw(promise, 200, 100);
      CHECK(rows.left() == 300);
      CHECK(promise.left() == 0);
      CHECK(promise.lent() == 200);
      CHECK(pool->lent() == 200);
      promise.restore(200, 300);
      CHECK(pool->bytes() == 500);  // it is held twice
    }
    CHECK(pool->bytes() == 200);
    CHECK(promise.left() == 200);
    CHECK(promise.lent() == 300);
    CHECK(pool->lent(1) == 300);
  }
  CHECK(pool->bytes() == 0);
  CHECK(pool->lent() == 0);
  CHECK(pool->lent(1) == 0);
}

TEST_CASE("pool: bytes that are about to come back are part of no peak") {
  const auto pool = std::make_shared<Pool>(kvasir::host_arena(), 1000, std::vector<int64_t>{0});
  std::optional<Pool::Reservation> before(pool->reserve(0, 900));
  {
    const Pool::Reservation next = pool->reserve(0, 500, 450);
    CHECK(pool->bytes() == 1400);
    CHECK(pool->peak_bytes() == 950);
    const Pool::Reservation nothing = pool->reserve(0, 0);  // as where all is drawn from a promise
    const Pool::Reservation exchange = pool->reserve(0, 20, 20);
    CHECK(pool->peak_bytes() == 950);
    before.reset();
  }
  CHECK(pool->bytes() == 0);
  CHECK(pool->peak_bytes() == 950);
}

TEST_CASE("pool: requests near the end of the number range are refused, not wrapped") {
  const auto pool = std::make_shared<Pool>(kvasir::host_arena(), INT64_MAX, std::vector<int64_t>{0});
  Block some = pool->take(0, BlockKind::kPage, 64);
  CHECK(refused(*pool, 0, INT64_MAX - 10));
  CHECK(pool->bytes() == 64);
}

TEST_CASE("pool: without a budget, no more is promised than can be counted") {
  const auto pool = std::make_shared<Pool>(kvasir::host_arena(), 0, std::vector<int64_t>{0, 0});
  const int64_t all = pool->room();
  const Pool::Reservation most = pool->reserve(0, all - 100);
  CHECK(refused(*pool, 1, 101));
  CHECK(refused(*pool, 1, INT64_MAX));
  CHECK(!pool->try_reserve(1, INT64_MAX).has_value());
  CHECK(pool->room() == 100);
  CHECK(!refused(*pool, 1, 100));
  CHECK(pool->bytes() == all - 100);
}

TEST_CASE("pool: what no budget stops can be counted, too, where no more can be promised") {
  for (const int64_t budget : {int64_t{0}, INT64_MAX}) {
    const auto pool = std::make_shared<Pool>(kvasir::host_arena(), budget, std::vector<int64_t>{0});
    const Pool::Reservation most = pool->reserve(0, pool->room());
    CHECK(refused(*pool, 0, 1));
    {
      const Pool::Reservation more = pool->overdraw(0, 1000);
      CHECK(pool->bytes() == most.left() + 1000);
      CHECK(pool->room() == -1000);
      CHECK(pool->room(0) == -1000);
      CHECK(refused(*pool, 0, 1));
    }
    const Pool::Reservation exchange = pool->reserve(0, 1000, 1000);
    CHECK(pool->bytes() == most.left() + 1000);
    CHECK(pool->peak_bytes() == most.left() + 1000);
  }
}

TEST_CASE("pool: memory that the system refuses leaves no trace") {
  if (support::kSanitized) return;  // their allocators end the program instead
  const auto pool = std::make_shared<Pool>(kvasir::host_arena(), 0, std::vector<int64_t>{0});
  try {
    Block huge = pool->take(0, BlockKind::kPage, int64_t{1} << 60);
    CHECK(!huge);
  } catch (const kvasir::Error& error) {
    CHECK(error.code() == kvasir::ErrorCode::kOutOfMemory);
  }
  CHECK(pool->bytes() == 0);
  CHECK(pool->usage(0, BlockKind::kPage).blocks == 0);
}

TEST_CASE("pool: blocks outlive their pool's owner") {
  Block block;
  {
    const auto pool = std::make_shared<Pool>(kvasir::host_arena(), 0, std::vector<int64_t>{0});
    block = pool->take(0, BlockKind::kPage, 64);
  }
  block.data()[63] = 1;
  block.reset();
  CHECK(!block);
}

TEST_CASE("pool: threads together never exceed the budget, and all of it comes back") {
  const auto pool = std::make_shared<Pool>(kvasir::host_arena(), 10'000, std::vector<int64_t>{0, 6'000});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&pool, i] {
      support::Random random(i);
      std::vector<Block> held;
      for (int step = 0; step < support::repeat(3000); ++step) {
        try {
          held.push_back(pool->take(random.below(2), BlockKind::kPage, 1 + random.below(900)));
        } catch (const kvasir::Error&) {
          held.clear();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(pool->bytes() == 0);
  CHECK(pool->peak_bytes() <= 10'000);
  CHECK(pool->peak_bytes() > 5'000);
}
