/** What programs that run a model beside a cache need of native code. Not part of the API. */
@NullMarked
package dev.kvasir.internal.model;

import org.jspecify.annotations.NullMarked;
