package dev.kvasir;

/**
 * A set of kernels.
 *
 * @param name what {@link KvCache.Builder#backend} takes, e.g. {@code "avx2"}
 * @param summary what it needs and what it does
 * @param available whether this machine can run it
 */
public record BackendInfo(String name, String summary, boolean available) {}
