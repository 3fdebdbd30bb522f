// An origin by Jetty: answers each request with what it has read of it, in the field `x-read`.

import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.HexFormat;
import javax.servlet.http.HttpServletRequest;
import javax.servlet.http.HttpServletResponse;
import org.eclipse.jetty.server.Request;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.handler.AbstractHandler;

public class JettyOrigin {
    public static void main(String[] arguments) throws Exception {
        var server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
        server.setHandler(new AbstractHandler() {
            @Override
            public void handle(String path, Request base, HttpServletRequest request, HttpServletResponse response)
                    throws IOException {
                var content = HexFormat.of().formatHex(request.getInputStream().readAllBytes());
                var target = base.getHttpURI().getPathQuery();
                response.setHeader("x-read", request.getMethod() + " " + target + " " + content);
                response.setContentLength(0);
                base.setHandled(true);
            }
        });
        server.start();
    }
}
