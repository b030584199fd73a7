// A process of its own with little memory. Not for sanitizers, which take addresses without end.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

namespace support {

// What a child, whose addresses end `more` bytes after those that it has, makes of `work`: what that returns, or minus
// the signal that ended it.
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
    _exit(work());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace support
