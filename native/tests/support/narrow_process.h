// A process of its own with little memory. Not for sanitizers, which take addresses without end.
#pragma once

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

namespace support {

// Of a child whose limit is not kept: QEMU takes one for the programs that it runs, and does nothing about it.
constexpr int kNoLimit = 97;

// What a child, whose addresses end `more` bytes after those that it has, makes of `work`: what that returns, or minus
// the signal that ended it, or kNoLimit.
template <class Work>
int in_narrow_process(size_t more, Work work) {
  const pid_t child = fork();
  if (child == 0) {
    long pages = 0;
    std::FILE* statm = std::fopen("/proc/self/statm", "r");
    if (!statm || std::fscanf(statm, "%ld", &pages) != 1) _exit(99);
    std::fclose(statm);
    const rlim_t limit = static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + more;
    const rlimit addresses = {limit, limit};
    if (setrlimit(RLIMIT_AS, &addresses) != 0) _exit(98);
    if (mmap(nullptr, 2 * more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) _exit(kNoLimit);
    _exit(work());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace support
