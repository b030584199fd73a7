// Loads a DLL as a Java runtime would, and asks for what a runtime calls first: load_dll.exe FILE. All that it imports has to be there.
#include <windows.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  HMODULE library = LoadLibraryA(argv[1]);
  if (library == nullptr) {
    std::printf("%s: error %lu\n", argv[1], GetLastError());
    return 1;
  }
  if (GetProcAddress(library, "JNI_OnLoad") == nullptr) {
    std::printf("%s has no JNI_OnLoad\n", argv[1]);
    return 1;
  }
  return 0;
}
